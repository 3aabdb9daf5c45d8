import { describe, expect, test } from "vitest";
import { type AnswerChunk, AnswerReader } from "../../../trainer/inference/answer.ts";
import type { AnswerPart } from "../../../trainer/model/tool-call.ts";
import { hermesToolCalls } from "../../../trainer/model/tool-call.ts";
import { makeTokenizer } from "../../../trainer/model/tokenizer.ts";
import { tinyTokenizer } from "./tiny-model.ts";

const tokenizer = makeTokenizer(tinyTokenizer(), {});
const END = 264;

describe("an answer with stop strings", () => {
  test("ends before the first one, with the ids up to the one that completed it", () => {
    const ids = [...tokenizer.encode("one two three")];
    const { text, tokens, finish } = whole(read(ids, { stop: ["thr", "two"] }));
    expect([text, finish]).toEqual(["one ", "stop"]);
    expect(tokenizer.decode(tokens)).toBe("one two");
  });

  test("holds back what may become one, and gives it when it does not", () => {
    const chunks = read([..."stay".split("").map((char) => char.charCodeAt(0)), END], { stop: ["stop"] });
    expect(chunks.map(({ parts }) => textOf(parts))).toEqual(["", "", "sta", "y", ""]);
    expect(whole(chunks).finish).toBe("stop");
  });

  test("the ids of held text go with the chunk in which they were sampled", () => {
    const chunks = read([115, 116, 111, 112, 120], { stop: ["stop"] });
    expect(chunks.map(({ tokens }) => tokens)).toEqual([[115], [116], [111], [112]]);
    expect(chunks.at(-1)?.finish).toBe("stop");
  });
});

describe("an answer that calls tools", () => {
  const text = 'Sure.\n<tool_call>\n{"name": "add", "arguments": {"a":1}}\n</tool_call>';

  test("finishes for its calls, in pieces as in one", () => {
    const ids = [...tokenizer.encode(text), END];
    const pieces = whole(read(ids, { tools: true }));
    expect(pieces).toEqual(whole(readAtOnce(ids, { tools: true })));
    expect(pieces.finish).toBe("tool_calls");
    expect(pieces.parts).toEqual([
      { type: "content", text: "Sure." },
      { type: "tool_call", call: { name: "add", arguments: '{"a":1}' } },
    ]);
    expect(pieces.tokens).toEqual(ids);
  });

  test("cut short it is content and finished by its length", () => {
    const ids = [...tokenizer.encode(text.slice(0, -6))];
    const { text: content, finish } = whole(read(ids, { tools: true }));
    expect([content, finish]).toEqual([text.slice(0, -6), "length"]);
  });
});

test("a character cut by the end of the answer is U+FFFD and not lost", () => {
  const [first = 0] = tokenizer.encode("é");
  expect(whole(read([97, first], {})).text).toBe("a\uFFFD");
});

interface Options {
  readonly stop?: readonly string[];
  readonly tools?: boolean;
}

function reader({ stop = [], tools = false }: Options): AnswerReader {
  return new AnswerReader({ tokenizer, stop, toolCalls: tools ? hermesToolCalls : null });
}

/** One report a token; the last one ends the answer as the decoder would. */
function read(ids: readonly number[], options: Options): AnswerChunk[] {
  const answer = reader(options);
  const chunks: AnswerChunk[] = [];
  for (const [i, id] of ids.entries()) {
    const finish = id === END ? "stop" : i === ids.length - 1 ? "length" : null;
    chunks.push(answer.push({ id: 0, tokens: [id], logprobs: [-i], alternatives: null, finish, cachedTokens: null }));
    if (answer.isDone) break;
  }
  return chunks;
}

function readAtOnce(ids: readonly number[], options: Options): AnswerChunk[] {
  const finish = ids.at(-1) === END ? "stop" : "length";
  const logprobs = ids.map((_, i) => -i);
  return [reader(options).push({ id: 0, tokens: ids, logprobs, alternatives: null, finish, cachedTokens: null })];
}

function whole(chunks: readonly AnswerChunk[]): {
  parts: AnswerPart[];
  text: string;
  tokens: number[];
  finish: AnswerChunk["finish"];
} {
  const parts: AnswerPart[] = [];
  for (const part of chunks.flatMap((chunk) => chunk.parts)) {
    const last = parts.at(-1);
    if (part.type === "content" && last?.type === "content") {
      parts[parts.length - 1] = { type: "content", text: last.text + part.text };
    } else parts.push(part);
  }
  return {
    parts,
    text: textOf(parts),
    tokens: chunks.flatMap(({ tokens }) => tokens),
    finish: chunks.at(-1)?.finish ?? null,
  };
}

function textOf(parts: readonly AnswerPart[]): string {
  return parts.map((part) => (part.type === "content" ? part.text : "")).join("");
}
