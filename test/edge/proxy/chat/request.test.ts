import { describe, expect, it } from "vitest";
import { inferenceBody, parseChatRequest } from "../../../../edge/proxy/chat/request.ts";

const asked = (fields: object): ReturnType<typeof parseChatRequest> =>
  parseChatRequest(JSON.stringify({ model: "gpt-4o", messages: [{ role: "user", content: "hi" }], ...fields }));
const sent = (fields: object, mode: "train" | "val" | "live" = "train"): unknown =>
  JSON.parse(inferenceBody(asked(fields), "flight@13", mode));

describe("parseChatRequest", () => {
  it.each([
    ["not JSON", "{", "not valid JSON"],
    ["no object", "[]", "form"],
    ["no model", '{"messages":[{"role":"user"}]}', "model"],
    ["no messages", '{"model":"m"}', "messages"],
    ["empty messages", '{"model":"m","messages":[]}', "messages"],
    ["a message without a role", '{"model":"m","messages":[{}]}', "messages.0.role"],
    [
      "two answers",
      '{"model":"m","messages":[{"role":"user"}],"n":2}',
      "n = 2 was asked for: send the request that often",
    ],
  ])("refuses %s in a sentence that names it", (_what, text, named) => {
    expect(() => parseChatRequest(text)).toThrow(named);
  });

  it.each([
    ["stream", 1],
    ["logprobs", "yes"],
    ["return_token_ids", 0],
    ["stream_options", []],
    ["stream_options.include_usage", { stream_options: { include_usage: 1 } }],
    ["n", 1.5],
    ["temperature", 2.5],
    ["temperature", -1],
    ["temperature", "hot"],
    ["model", "m".repeat(257)],
    ["messages", Array.from({ length: 4097 }, () => ({ role: "user" }))],
    ["messages.1.role", { messages: [{ role: "user" }, { role: 3 }] }],
  ])("refuses a %s that is not usable", (path, value) => {
    expect(() => asked(path.includes(".") ? Object(value) : { [path]: value })).toThrow(`the body's ${path} `);
  });

  it("takes null for fields that are not set, as several clients send them", () => {
    expect(asked({ stream: null, n: null, temperature: null, logprobs: null }).stream).toBeNull();
  });
});

describe("inferenceBody", () => {
  it("asks for exactly the version, with ids and logprobs", () => {
    expect(sent({})).toMatchObject({
      model: "flight@13",
      return_token_ids: true,
      logprobs: true,
      n: 1,
      temperature: 1,
    });
  });

  it("samples the whole distribution while training, whatever the agent asked", () => {
    const body = sent({
      top_p: 0.5,
      top_k: 5,
      min_p: 0.1,
      presence_penalty: 1,
      logit_bias: { 1: 2 },
      temperature: 0.7,
    });
    expect(body).toMatchObject({ top_p: 1, top_k: -1, temperature: 0.7 });
    for (const field of ["min_p", "presence_penalty", "logit_bias"]) expect(body).not.toHaveProperty(field);
  });

  it("leaves an agent's sampling alone otherwise", () => {
    expect(sent({ top_p: 0.5 }, "live")).toMatchObject({ top_p: 0.5 });
    expect(sent({}, "val")).not.toHaveProperty("top_p");
  });

  it("drops nulls and what is for OpenAI's own service, and keeps the rest", () => {
    const body = sent({
      tools: null,
      store: true,
      metadata: { a: "b" },
      user: "u",
      stop: ["x"],
      response_format: { type: "text" },
    });
    expect(body).toMatchObject({ stop: ["x"], response_format: { type: "text" } });
    for (const field of ["tools", "store", "metadata", "user"]) expect(body).not.toHaveProperty(field);
  });

  it("speaks of the developer role as system, which templates know", () => {
    expect(sent({ messages: [{ role: "developer", content: "x" }] })).toMatchObject({
      messages: [{ role: "system", content: "x" }],
    });
  });

  it("always has usage counted in a stream", () => {
    expect(sent({ stream: true })).toMatchObject({ stream: true, stream_options: { include_usage: true } });
    expect(sent({ stream_options: { include_usage: true } })).not.toHaveProperty("stream_options");
  });
});
