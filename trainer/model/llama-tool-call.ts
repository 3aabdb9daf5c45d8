/**
 * Tool calls as Llama 3 writes them: the whole answer is a JSON object `{"name": …, "parameters": {…}}`, or several with
 * semicolons between them. Nothing marks the beginning, so an answer that starts with a brace is held until its end.
 */

import { type AnswerPart, parseCall, type ToolCallFormat, type ToolCallStream } from "./tool-call.ts";

/** The JSON format of Llama 3 models. */
export const llamaToolCalls: ToolCallFormat = {
  start: () => new LlamaStream(),
  callText: (toolName) => ({ before: `{"name": ${JSON.stringify(toolName)}, "parameters": `, after: "}" }),
};

class LlamaStream implements ToolCallStream {
  #held = "";
  /** Known once the first character that is no space has come. */
  #isContent = false;

  push(text: string): AnswerPart[] {
    if (this.#isContent) return [{ type: "content", text }];
    this.#held += text;
    const start = this.#held.trimStart();
    if (start === "" || start.startsWith("{")) return [];
    this.#isContent = true;
    return [{ type: "content", text: this.#held }];
  }

  end(): AnswerPart[] {
    if (this.#isContent || this.#held === "") return [];
    const calls = splitObjects(this.#held).map((json) => parseCall(json, "parameters"));
    const isWhole = calls.length > 0 && calls.every((call) => call !== null);
    if (!isWhole) return [{ type: "content", text: this.#held }];
    return calls.flatMap((call) => (call === null ? [] : [{ type: "tool_call", call }]));
  }
}

/** The texts between semicolons that stand outside of strings and braces. */
function splitObjects(text: string): string[] {
  const objects: string[] = [];
  let depth = 0;
  let isString = false;
  let start = 0;
  for (let i = 0; i < text.length; i++) {
    const char = text[i];
    if (isString) {
      if (char === "\\") i++;
      else if (char === '"') isString = false;
    } else if (char === '"') isString = true;
    else if (char === "{") depth++;
    else if (char === "}") depth--;
    else if (char === ";" && depth === 0) {
      objects.push(text.slice(start, i));
      start = i + 1;
    }
  }
  objects.push(text.slice(start));
  return objects.map((each) => each.trim()).filter((each) => each !== "");
}
