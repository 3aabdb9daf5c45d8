import { describe, expect, it } from "vitest";
import { MessageGatherer } from "../../../../edge/proxy/translated/pieces.ts";

function gather(...deltas: object[]): { gatherer: MessageGatherer; pieces: unknown[] } {
  let made = 0;
  const gatherer = new MessageGatherer(() => `made_${++made}`);
  const pieces = deltas.flatMap((delta) => gatherer.take({ tool_calls: [delta] }).toolCalls);
  return { gatherer, pieces };
}

const called = (name: string, text: string): object => ({ function: { name, arguments: text } });
const more = (text: string): object => ({ function: { arguments: text } });

describe("the deltas of a chat stream", () => {
  it("are gathered into a message", () => {
    const { gatherer } = gather();
    expect(gatherer.message).toEqual({ content: null, reasoning: null, toolCalls: [] });
    expect(gatherer.take({ role: "assistant", content: "" })).toEqual({ text: "", reasoning: "", toolCalls: [] });
    expect(gatherer.take({ reasoning_content: "hm" })).toEqual({ text: "", reasoning: "hm", toolCalls: [] });
    gatherer.take({ reasoning: "m" });
    gatherer.take({ content: "Hel" });
    gatherer.take({ content: "lo" });
    expect(gatherer.message).toEqual({ content: "Hello", reasoning: "hmm", toolCalls: [] });
  });

  it("of tool calls as OpenAI sends them stay as they are", () => {
    const { gatherer, pieces } = gather(
      { index: 0, id: "a", ...called("add", "") },
      { index: 0, ...more('{"x":') },
      { index: 0, ...more("1}") },
      { index: 1, id: "b", ...called("mul", "{}") },
    );
    expect(pieces).toEqual([
      { index: 0, id: "a", name: "add", argumentsDelta: "" },
      { index: 0, argumentsDelta: '{"x":' },
      { index: 0, argumentsDelta: "1}" },
      { index: 1, id: "b", name: "mul", argumentsDelta: "{}" },
    ]);
    expect(gatherer.message.toolCalls).toEqual([
      { id: "a", type: "function", function: { name: "add", arguments: '{"x":1}' } },
      { id: "b", type: "function", function: { name: "mul", arguments: "{}" } },
    ]);
  });

  it.each<[string, object[], (readonly [string, string, string])[]]>([
    [
      "without indices and ids",
      [called("add", '{"x":'), more("1}"), called("mul", "{}")],
      [
        ["made_1", "add", '{"x":1}'],
        ["made_2", "mul", "{}"],
      ],
    ],
    [
      "without indices",
      [
        { id: "a", ...called("add", "{") },
        { id: "a", ...more("}") },
        { id: "b", ...called("mul", "{}") },
      ],
      [
        ["a", "add", "{}"],
        ["b", "mul", "{}"],
      ],
    ],
    [
      "with one index for all calls",
      [
        { index: 0, id: "a", ...called("add", "{}") },
        { index: 0, id: "b", ...called("mul", "{") },
        { index: 0, id: "b", ...more("}") },
      ],
      [
        ["a", "add", "{}"],
        ["b", "mul", "{}"],
      ],
    ],
    [
      "with one id for two calls",
      [
        { index: 0, id: "a", ...called("add", "{}") },
        { index: 1, id: "a", ...called("mul", "{}") },
      ],
      [
        ["a", "add", "{}"],
        ["made_1", "mul", "{}"],
      ],
    ],
    [
      "in turns",
      [
        { index: 0, id: "a", ...called("add", "{") },
        { index: 1, id: "b", ...called("mul", "{") },
        { index: 0, ...more("}") },
        { index: 1, ...more("}") },
      ],
      [
        ["a", "add", "{}"],
        ["b", "mul", "{}"],
      ],
    ],
    ["with arguments as an object", [called("add", { x: 1 } as never)], [["made_1", "add", '{"x":1}']]],
  ])("of tool calls %s are put in their places", (_what, deltas, wanted) => {
    const { gatherer, pieces } = gather(...deltas);
    expect(pieces).toHaveLength(deltas.length);
    expect(gatherer.message.toolCalls.map(({ id, function: { name, arguments: text } }) => [id, name, text])).toEqual(
      wanted,
    );
  });
});
