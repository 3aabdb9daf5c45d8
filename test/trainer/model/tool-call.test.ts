import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { join } from "../../../trainer/inference/answer.ts";
import { type AnswerPart, hermesToolCalls } from "../../../trainer/model/tool-call.ts";

describe("Hermes tool calls", () => {
  test("a call alone has no content, and its arguments are the sampled text", () => {
    expect(parse('<tool_call>\n{"name": "add", "arguments": {"b":2,  "a" : 1}}\n</tool_call>')).toEqual([
      { type: "tool_call", call: { name: "add", arguments: '{"b":2,  "a" : 1}' } },
    ]);
  });

  test("content before calls stays, white space between them is format", () => {
    const text =
      'Let me look.\n<tool_call>{"name":"a","arguments":{}}</tool_call>\n<tool_call>{"name":"b"}</tool_call>\n';
    expect(parse(text)).toEqual([
      { type: "content", text: "Let me look." },
      { type: "tool_call", call: { name: "a", arguments: "{}" } },
      { type: "tool_call", call: { name: "b", arguments: "{}" } },
    ]);
  });

  test.each([
    ["no JSON", "<tool_call>\nadd(1)\n</tool_call>"],
    ["no name", '<tool_call>{"arguments": {}}</tool_call>'],
    ["arguments that are no object", '<tool_call>{"name": "a", "arguments": 3}</tool_call>'],
    ["an unfinished call", '<tool_call>{"name": "a", "argu'],
    ["half a tag", "1 <tool"],
    ["plain text with spaces at its end", "hello  \n"],
  ])("%s stays content", (_, text) => {
    expect(parse(text)).toEqual([{ type: "content", text }]);
  });

  test("braces, quotes and the key's own name inside strings do not confuse the arguments", () => {
    const inner = '{"text": "} \\" , {\\"arguments\\": 1}", "arguments": [1, {"x": "]"}]}';
    const [part] = parse(`<tool_call>{"note": "\\"arguments\\": {}", "arguments": ${inner}, "name": "n"}</tool_call>`);
    expect(part).toEqual({ type: "tool_call", call: { name: "n", arguments: inner } });
  });

  test("arguments given as JSON in a string are that string's text", () => {
    expect(parse('<tool_call>{"name": "a", "arguments": "{\\"x\\":1}"}</tool_call>')).toEqual([
      { type: "tool_call", call: { name: "a", arguments: '{"x":1}' } },
    ]);
  });

  test("however the text is cut, the parts are the same", () => {
    const piece = fc.constantFrom(
      "<tool_call>",
      "</tool_call>",
      '{"name": "f", "arguments": {"k": [1, 2]}}',
      "\n",
      " ",
      "<tool",
      "text",
      "é🚀",
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 12 }), fc.array(fc.nat(40), { maxLength: 12 }), (pieces, cuts) => {
        const text = pieces.join("");
        const bounds = [0, ...cuts.filter((cut) => cut < text.length).toSorted((a, b) => a - b), text.length];
        const stream = hermesToolCalls.start();
        const parts: AnswerPart[] = [];
        for (let i = 1; i < bounds.length; i++) {
          for (const part of stream.push(text.slice(bounds[i - 1], bounds[i]))) join(parts, part);
        }
        for (const part of stream.end()) join(parts, part);
        expect(parts).toEqual(parse(text));
      }),
    );
  });

  test("a call written around its arguments is read as that call", () => {
    const { before, after } = hermesToolCalls.callText("add");
    expect(parse(`${before}{"a": 1}${after}`)).toEqual([
      { type: "tool_call", call: { name: "add", arguments: '{"a": 1}' } },
    ]);
  });
});

function parse(text: string): AnswerPart[] {
  const stream = hermesToolCalls.start();
  const parts: AnswerPart[] = [];
  for (const part of [...stream.push(text), ...stream.end()]) join(parts, part);
  return parts;
}
