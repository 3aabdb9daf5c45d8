import { describe, expect, it } from "vitest";
import { Capture } from "../../../../edge/proxy/capture.ts";
import { completionsDialect } from "../../../../edge/proxy/completions/completions.ts";
import { messagesDialect } from "../../../../edge/proxy/messages/messages.ts";
import type { Rewriter } from "../../../../edge/proxy/stream.ts";
import { translating } from "../../../../edge/proxy/translated/stream.ts";
import { PROMPT_IDS, streamEvents, type MockReply } from "../../../support/mock-inference.ts";

const head = { id: "ca_0199", startedAt: 12_345, model: "flight" };
const history = (): never => {
  throw new Error("no history was expected");
};

function capture(): Capture {
  return new Capture({
    id: head.id,
    tenantId: "t",
    rolloutId: "ro_1",
    attempt: 1,
    mode: "train",
    dialect: "messages",
    modelAsked: "flight",
    requestText: "{}",
    startedAt: head.startedAt,
  });
}

async function messages(into: Capture): Promise<Rewriter> {
  const body = { model: "flight", max_tokens: 64, messages: [{ role: "user", content: "hi" }], stream: true };
  const request = await messagesDialect.parse(JSON.stringify(body), { history });
  return translating(into, request.stream(head), { settle: () => undefined });
}

function feed(rewriter: Rewriter, reply: MockReply): string {
  let sent = "";
  for (const event of streamEvents({ model: "t~flight@0" }, reply)) {
    expect(rewriter.ended).toBe(false);
    sent += rewriter.take([event.trimEnd().replace(/^data: /, "")]);
  }
  expect(rewriter.ended).toBe(true);
  return sent;
}

function typesOf(events: string): string[] {
  return [...events.matchAll(/^event: (.*)$/gm)].map(([, type]) => type ?? "");
}

describe("inference's chat stream as another dialect's", () => {
  it("gives a text as it comes, its end after the record, and gathers what is recorded", async () => {
    const into = capture();
    const rewriter = await messages(into);
    const sent = feed(rewriter, { tokens: ["Hel", "lo"] });
    expect(typesOf(sent)).toEqual([
      "message_start",
      "ping",
      "content_block_start",
      "content_block_delta",
      "content_block_delta",
    ]);
    expect(typesOf(rewriter.ending())).toEqual(["content_block_stop", "message_delta", "message_stop"]);
    into.target = { policy: "flight", version: 0 };
    expect(into.record({ httpStatus: 200, error: null, now: 12_400 })).toMatchObject({
      response: JSON.stringify({ role: "assistant", content: "Hello" }),
      finishReason: "stop",
      modelAnswered: "flight@0",
      promptTokens: PROMPT_IDS.length,
      completionTokens: 2,
      trainable: true,
    });
  });

  it("makes tool calls whole", async () => {
    const into = capture();
    const rewriter = await messages(into);
    const sent = feed(rewriter, { tokens: ["x"], toolCalls: [{ id: "", name: "add", arguments: '{"a":1}' }] });
    const [toolCall] = into.toolCalls;
    expect(toolCall).toEqual({
      id: expect.stringMatching(/^call_./) as string,
      type: "function",
      function: { name: "add", arguments: '{"a":1}' },
    });
    expect(sent).toContain(`"content_block":{"type":"tool_use","id":"${toolCall?.id ?? ""}","name":"add","input":{}}`);
    expect(rewriter.ending()).toContain('"stop_reason":"tool_use"');
  });

  it("reads completions by their own form", () => {
    const into = capture();
    const request = completionsDialect.parse('{"model":"flight","prompt":"x","stream":true,"logprobs":1}');
    const rewriter = translating(into, request.stream(head), {
      asChat: (chunk) => request.own.asChat(chunk),
      settle: () => undefined,
    });
    const logprobs = { tokens: ["a"], token_logprobs: [-0.5], top_logprobs: [{ a: -0.5 }], text_offset: [0] };
    const sent = rewriter.take([
      JSON.stringify({
        model: "t~flight@0",
        prompt_token_ids: [1],
        choices: [{ index: 0, text: "a", logprobs, token_ids: [7], finish_reason: "length" }],
      }),
    ]);
    expect(JSON.parse(sent.replace(/^data: /, ""))).toMatchObject({
      object: "text_completion",
      choices: [{ text: "a", logprobs, finish_reason: null }],
    });
    into.target = { policy: "flight", version: 0 };
    expect(into.record({ httpStatus: 200, error: null, now: 1 })).toMatchObject({
      trainable: true,
      finishReason: "length",
      responseTokens: ["a"],
    });
  });

  it("tells of a failure in its own words, and keeps what came before it", async () => {
    const into = capture();
    const rewriter = await messages(into);
    const chunk = JSON.stringify({ model: "t~flight@0", choices: [{ delta: { content: "Hel" } }] });
    expect(() => rewriter.take([chunk, '{"error":{"message":"out of memory"}}'])).toThrow("out of memory");
    expect(into.content).toBe("Hel");
    expect(() => rewriter.take(["?"])).toThrow("not a JSON object");
    expect(rewriter.fail(new Error("x"))).toContain('"type":"error"');
  });

  it("is settled when the upstream has said all", async () => {
    const settled: boolean[] = [];
    const body = { model: "flight", max_tokens: 64, messages: [{ role: "user", content: "hi" }], stream: true };
    const request = await messagesDialect.parse(JSON.stringify(body), { history });
    const rewriter = translating(capture(), request.stream(head), { settle: (ended) => void settled.push(ended) });
    rewriter.close();
    rewriter.take(["[DONE]"]);
    rewriter.close();
    expect(settled).toEqual([false, true]);
  });
});
