import { expect, test } from "vitest";
import { llamaToolCalls } from "../../../trainer/model/llama-tool-call.ts";
import type { AnswerPart } from "../../../trainer/model/tool-call.ts";
import { hermesToolCalls } from "../../../trainer/model/tool-call.ts";
import { toolCallFormatOf } from "../../../trainer/model/tool-call-formats.ts";

test("an answer that is a call is a tool call with the sampled parameters", () => {
  expect(parse(' {"name": "add", "parameters": {"b":2,  "a": 1}}')).toEqual([call("add", '{"b":2,  "a": 1}')]);
});

test("several calls stand between semicolons, also where strings hold some", () => {
  expect(parse('{"name": "a", "parameters": {"x": ";}"}}; {"name": "b", "parameters": {}}')).toEqual([
    call("a", '{"x": ";}"}'),
    call("b", "{}"),
  ]);
});

test.each(["plain text", '{"answer": 42}', '{"name": "a", "parameters": ', '{"name": "a"}; and more', "  "])(
  "%j is content",
  (text) => {
    expect(parse(text)).toEqual([{ type: "content", text }]);
  },
);

test("text is given as it comes, a possible call only at the end", () => {
  const text = llamaToolCalls.start();
  expect([text.push(" "), text.push("so "), text.push("{}")]).toEqual([
    [],
    [{ type: "content", text: " so " }],
    [{ type: "content", text: "{}" }],
  ]);
  const json = llamaToolCalls.start();
  expect([json.push('{"name": "a", '), json.push('"parameters": {}}')]).toEqual([[], []]);
  expect(json.end()).toEqual([call("a", "{}")]);
});

test("a call written around its arguments is read as that call", () => {
  const { before, after } = llamaToolCalls.callText("add");
  expect(parse(`${before}{"a": 1}${after}`)).toEqual([call("add", '{"a": 1}')]);
});

test("the template tells which format its model was taught", () => {
  expect(toolCallFormatOf("… within <tool_call></tool_call> tags …")).toBe(hermesToolCalls);
  expect(toolCallFormatOf("{{ '<|python_tag|>' + call }}")).toBe(llamaToolCalls);
  expect(toolCallFormatOf("{{ message.content }}")).toBe(hermesToolCalls);
});

function call(name: string, text: string): AnswerPart {
  return { type: "tool_call", call: { name, arguments: text } };
}

function parse(text: string): AnswerPart[] {
  const stream = llamaToolCalls.start();
  return [...stream.push(text), ...stream.end()];
}
