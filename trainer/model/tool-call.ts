/**
 * Tool calls in an answer's text, Hermes and Qwen style: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.
 * One parser reads the text as it comes, so that streamed and whole answers cannot differ.
 */

const OPEN = "<tool_call>";
const CLOSE = "</tool_call>";

/** A call as sampled. */
export interface ParsedToolCall {
  readonly name: string;
  /** JSON text of the arguments, character for character as sampled. */
  readonly arguments: string;
}

/** One piece of an answer, in order. */
export type AnswerPart =
  | { readonly type: "content"; readonly text: string }
  | { readonly type: "tool_call"; readonly call: ParsedToolCall };

/** What a model's tool-call format must offer; a second format is another file with this shape. */
export interface ToolCallFormat {
  /** Begins reading one answer. */
  start(): ToolCallStream;
  /** How a call of this tool is written: what comes before its arguments, and what comes behind them. */
  callText(toolName: string): { readonly before: string; readonly after: string };
}

/** Reads one answer. Content that might be the start of a tool call is held back until it is known. */
export interface ToolCallStream {
  push(text: string): AnswerPart[];
  /** The parts that were held back; an unfinished or malformed tool call is content. */
  end(): AnswerPart[];
}

/** The format of Hermes and Qwen models. */
export const hermesToolCalls: ToolCallFormat = {
  start: () => new HermesStream(),
  callText: (toolName) => ({
    before: `${OPEN}\n{"name": ${JSON.stringify(toolName)}, "arguments": `,
    after: `}\n${CLOSE}`,
  }),
};

class HermesStream implements ToolCallStream {
  /** Text not given out yet. */
  #held = "";
  /** White space around calls is part of the format and not content; it is given out only before further content. */
  #space = "";
  #calls = 0;

  push(text: string): AnswerPart[] {
    this.#held += text;
    const parts: AnswerPart[] = [];
    for (;;) {
      const open = this.#held.indexOf(OPEN);
      if (open < 0) {
        const keep = partialSuffix(this.#held, OPEN);
        this.#content(parts, this.#held.slice(0, this.#held.length - keep));
        this.#held = this.#held.slice(this.#held.length - keep);
        return parts;
      }
      this.#content(parts, this.#held.slice(0, open));
      this.#held = this.#held.slice(open);
      const close = this.#held.indexOf(CLOSE);
      if (close < 0) return parts;
      const block = this.#held.slice(0, close + CLOSE.length);
      this.#held = this.#held.slice(block.length);
      const call = parseCall(block.slice(OPEN.length, -CLOSE.length));
      if (call === null) this.#content(parts, block);
      else {
        this.#space = "";
        this.#calls++;
        parts.push({ type: "tool_call", call });
      }
    }
  }

  end(): AnswerPart[] {
    const parts: AnswerPart[] = [];
    const left = this.#held;
    this.#held = "";
    this.#content(parts, left);
    // Trailing space is content only where there is no call that it could belong to.
    if (this.#space !== "" && this.#calls === 0) addContent(parts, this.#space);
    this.#space = "";
    return parts;
  }

  #content(parts: AnswerPart[], text: string): void {
    const body = text.trimEnd();
    if (body === "") {
      this.#space += text;
      return;
    }
    addContent(parts, this.#space + body);
    this.#space = text.slice(body.length);
  }
}

function addContent(parts: AnswerPart[], text: string): void {
  const last = parts.at(-1);
  if (last?.type === "content") parts[parts.length - 1] = { type: "content", text: last.text + text };
  else parts.push({ type: "content", text });
}

/** Length of the longest suffix of `text` that is a proper prefix of `tag`. */
function partialSuffix(text: string, tag: string): number {
  for (let length = Math.min(tag.length - 1, text.length); length > 0; length--) {
    if (text.endsWith(tag.slice(0, length))) return length;
  }
  return 0;
}

/**
 * Reads one call written as a JSON object with its name and arguments.
 * @param argumentsKey what the format calls the arguments
 * @returns null when it is no such object
 */
export function parseCall(json: string, argumentsKey = "arguments"): ParsedToolCall | null {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch {
    return null;
  }
  if (typeof value !== "object" || value === null || !("name" in value)) return null;
  const { name } = value;
  if (typeof name !== "string" || name === "") return null;
  const given = Object.entries(value).find(([key]) => key === argumentsKey);
  if (given === undefined) return { name, arguments: "{}" };
  const [, args] = given;
  // Some models write the arguments as JSON inside a string; that text is then what was sampled.
  if (typeof args === "string") return isJsonObject(args) ? { name, arguments: args } : null;
  if (typeof args !== "object" || args === null) return null;
  return { name, arguments: memberText(json, argumentsKey) ?? JSON.stringify(args) };
}

function isJsonObject(text: string): boolean {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null;
  } catch {
    return false;
  }
}

/**
 * The source text of a top-level member of a JSON object that is known to be valid; of a repeated key the last,
 * as JSON.parse has it.
 */
function memberText(json: string, key: string): string | null {
  let depth = 0;
  let found: string | null = null;
  let i = 0;
  while (i < json.length) {
    const char = json[i];
    if (char === '"') {
      const end = stringEnd(json, i);
      const after = skipSpace(json, end);
      if (depth === 1 && json[after] === ":" && JSON.parse(json.slice(i, end)) === key) {
        const start = skipSpace(json, after + 1);
        const stop = valueEnd(json, start);
        found = json.slice(start, stop).trimEnd();
        i = stop;
      } else i = end;
      continue;
    }
    if (char === "{" || char === "[") depth++;
    else if (char === "}" || char === "]") depth--;
    i++;
  }
  return found;
}

/** Index after the string that begins at `start`. */
function stringEnd(json: string, start: number): number {
  let i = start + 1;
  while (i < json.length && json[i] !== '"') i += json[i] === "\\" ? 2 : 1;
  return i + 1;
}

function skipSpace(json: string, start: number): number {
  let i = start;
  while (i < json.length && /\s/.test(json[i] ?? "")) i++;
  return i;
}

/** Index of the comma or bracket that ends the value beginning at `start`. */
function valueEnd(json: string, start: number): number {
  let depth = 0;
  let i = start;
  while (i < json.length) {
    const char = json[i];
    if (char === '"') {
      i = stringEnd(json, i);
      continue;
    }
    if (char === "{" || char === "[") depth++;
    else if (char === "}" || char === "]") {
      if (depth === 0) return i;
      depth--;
    } else if (char === "," && depth === 0) return i;
    i++;
  }
  return i;
}
