import { describe, expect, it } from "vitest";
import type { ChatMessage } from "../../../../edge/proxy/dialect.ts";
import { readInput } from "../../../../edge/proxy/responses/items.ts";

const KEY = "0199aaaabbbbccccddddeeeeffff0001";
const OTHER = "0199aaaabbbbccccddddeeeeffff0002";
const none = { history: (): Promise<never> => Promise.reject(new Error("no history was to be asked for")) };
const read = (...items: unknown[]): Promise<readonly ChatMessage[]> => readInput(items, none);
const called = (id: string, name = "f", text = "{}"): object => ({
  id,
  type: "function",
  function: { name, arguments: text },
});

describe("readInput", () => {
  it("takes a text as the user's", async () => {
    expect(await readInput("hi", none)).toEqual([{ role: "user", content: "hi" }]);
  });

  it("takes messages of every role, with or without their type", async () => {
    expect(
      await read(
        { role: "system", content: "s" },
        { type: "message", role: "developer", content: [{ type: "input_text", text: "d" }] },
        {
          role: "user",
          content: [
            { type: "input_text", text: "a" },
            { type: "input_text", text: "b" },
          ],
        },
        {
          role: "assistant",
          content: [
            { type: "output_text", text: "x", annotations: [] },
            { type: "refusal", refusal: "y" },
          ],
        },
      ),
    ).toEqual([
      { role: "system", content: "s" },
      { role: "developer", content: "d" },
      {
        role: "user",
        content: [
          { type: "text", text: "a" },
          { type: "text", text: "b" },
        ],
      },
      { role: "assistant", content: "xy" },
    ]);
  });

  it("makes one assistant's message of an answer's reasoning, text and calls", async () => {
    expect(
      await read(
        { role: "user", content: "q" },
        { type: "reasoning", id: "rs_foreign", summary: [], content: [{ type: "reasoning_text", text: "hm" }] },
        {
          type: "message",
          id: "msg_foreign",
          role: "assistant",
          content: [{ type: "output_text", text: "let me see" }],
        },
        { type: "function_call", id: "fc_foreign", call_id: "c1", name: "f", arguments: "{}" },
        { type: "function_call", call_id: "c2", name: "g", arguments: '{"a":1}' },
        { type: "function_call_output", call_id: "c1", output: "1" },
        { type: "function_call_output", call_id: "c2", output: [{ type: "input_text", text: "2" }] },
      ),
    ).toEqual([
      { role: "user", content: "q" },
      {
        role: "assistant",
        content: "let me see",
        reasoning_content: "hm",
        tool_calls: [called("c1"), called("c2", "g", '{"a":1}')],
      },
      { role: "tool", tool_call_id: "c1", content: "1" },
      { role: "tool", tool_call_id: "c2", content: "2" },
    ]);
  });

  it("keeps answers apart that stand side by side", async () => {
    const said = (text: string, id?: string): object => ({
      role: "assistant",
      content: text,
      ...(id === undefined ? {} : { id }),
    });
    expect(await read(said("a"), said("b"))).toEqual([
      { role: "assistant", content: "a" },
      { role: "assistant", content: "b" },
    ]);
    expect(
      await read(said("a", `msg_${KEY}`), {
        type: "function_call",
        id: `fc_${OTHER}`,
        call_id: "c",
        name: "f",
        arguments: "{}",
      }),
    ).toEqual([
      { role: "assistant", content: "a" },
      { role: "assistant", content: null, tool_calls: [called("c")] },
    ]);
    expect(
      await read(
        said("a"),
        { type: "reasoning", summary: [{ type: "summary_text", text: "s" }] },
        { type: "function_call", call_id: "c", name: "f", arguments: "{}" },
      ),
    ).toEqual([
      { role: "assistant", content: "a" },
      { role: "assistant", content: null, tool_calls: [called("c")] },
    ]);
  });

  it("joins the texts that a stream gave as two items of one answer", async () => {
    expect(
      await read(
        { type: "message", id: `msg_${KEY}`, role: "assistant", content: "a" },
        { type: "function_call", id: `fc_${KEY}`, call_id: "c", name: "f", arguments: "{}" },
        { type: "message", id: `msg_${KEY}_1`, role: "assistant", content: "b" },
      ),
    ).toEqual([{ role: "assistant", content: "ab", tool_calls: [called("c")] }]);
  });

  it("looks references up in the response that they are of, once", async () => {
    const asked: string[] = [];
    const history = (responseId: string): Promise<ChatMessage[]> => {
      asked.push(responseId);
      return Promise.resolve([
        { role: "user", content: "q" },
        { role: "assistant", content: "text", reasoning_content: "why", tool_calls: [called("c0"), called("c1")] },
      ]);
    };
    const input = [
      { type: "item_reference", id: `rs_${KEY}` },
      { id: `msg_${KEY}` },
      { type: null, id: `msg_${KEY}_1` },
      { type: "item_reference", id: `fc_${KEY}_1` },
      { type: "function_call_output", call_id: "c1", output: "ok" },
    ];
    expect(await readInput(input, { history })).toEqual([
      { role: "assistant", content: "text", reasoning_content: "why", tool_calls: [called("c1")] },
      { role: "tool", tool_call_id: "c1", content: "ok" },
    ]);
    expect(asked).toEqual([`resp_${KEY}`]);
  });

  it("says which reference leads nowhere", async () => {
    await expect(read({ type: "item_reference", id: "msg_abc" })).rejects.toMatchObject({
      code: "ERR_INVALID_REQUEST",
      message: `the body's input.0.id is not usable: "msg_abc" is no item of a response of this edge; send the item itself`,
    });
    const history = (): Promise<ChatMessage[]> => Promise.resolve([{ role: "assistant", content: null }]);
    for (const id of [`msg_${KEY}`, `rs_${KEY}`, `fc_${KEY}_3`]) {
      await expect(readInput([{ type: "item_reference", id }], { history })).rejects.toThrow(
        `resp_${KEY} has no item "${id}"`,
      );
    }
  });

  it.each([
    ["input.0", 3],
    ["input.0.role", { role: "tool", content: "x" }],
    ["input.0.role", { type: "message", content: "x" }],
    ["input.0.content", { role: "user" }],
    ["input.0.content.0", { role: "user", content: ["x"] }],
    ["input.0.content.0.text", { role: "user", content: [{ type: "input_text" }] }],
    ["input.0.content.0.type", { role: "user", content: [{ type: "input_image", image_url: "data:" }] }],
    ["input.0.content.0.type", { role: "user", content: [{ type: "input_file", file_id: "f" }] }],
    ["input.0.output.0.type", { type: "function_call_output", call_id: "c", output: [{ type: "input_image" }] }],
    ["input.0.output", { type: "function_call_output", call_id: "c", output: { a: 1 } }],
    ["input.0.call_id", { type: "function_call_output", output: "x" }],
    ["input.0.call_id", { type: "function_call", name: "f", arguments: "{}" }],
    ["input.0.name", { type: "function_call", call_id: "c", arguments: "{}" }],
    ["input.0.arguments", { type: "function_call", call_id: "c", name: "f", arguments: {} }],
    ["input.0.type", { type: "web_search_call", id: "ws_1" }],
    ["input.0.type", { type: "custom_tool_call_output", call_id: "c", output: "x" }],
  ])("refuses what a policy cannot be shown, at %s", async (path, item) => {
    await expect(read(item)).rejects.toMatchObject({
      code: "ERR_INVALID_REQUEST",
      message: expect.stringContaining(`the body's ${path} is not usable: `),
    });
  });

  it("never repeats a prompt in an error", async () => {
    const failure = await read({ role: "user", content: [{ type: "x".repeat(200) }] }).catch(String);
    expect(failure).toContain("a long text came");
  });
});
