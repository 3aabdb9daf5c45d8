import { describe, expect, it } from "vitest";
import { unpackFloats, unpackIds } from "#shared/packed.ts";
import { Capture, wholeToolCalls, type CallStart } from "../../../edge/proxy/capture.ts";

const start: CallStart = {
  id: "ca_1",
  tenantId: "t",
  rolloutId: "ro_1",
  attempt: 2,
  mode: "train",
  dialect: "chat",
  modelAsked: "gpt-4o",
  requestText: '{"model":"gpt-4o"}',
  startedAt: 1000,
};

function answer(change: object = {}, choiceChange: object = {}): Record<string, unknown> {
  return {
    model: "t~flight@13",
    prompt_token_ids: [1, 2],
    choices: [
      {
        finish_reason: "stop",
        token_ids: [7, 8],
        logprobs: {
          content: [
            { token: "a", logprob: -0.25 },
            { token: "b", logprob: -0.5 },
          ],
        },
        ...choiceChange,
      },
    ],
    usage: { prompt_tokens: 2, completion_tokens: 2, total_tokens: 4 },
    ...change,
  };
}

function captured(change: object = {}, choiceChange: object = {}): Capture {
  const capture = new Capture(start);
  capture.target = { policy: "flight", version: 13 };
  capture.takeAnswer(answer(change, choiceChange), { role: "assistant", content: "ab" });
  return capture;
}

const OK = { httpStatus: 200, error: null, now: 1250 };

describe("Capture", () => {
  it("makes the store's row of a whole answer", () => {
    const record = captured().record(OK);
    expect(record).toMatchObject({
      id: "ca_1",
      attempt: 2,
      policy: "flight",
      policyVersion: 13,
      modelAnswered: "flight@13",
      request: start.requestText,
      response: '{"role":"assistant","content":"ab"}',
      promptTokens: 2,
      completionTokens: 2,
      responseTokens: ["a", "b"],
      trainable: true,
      error: null,
      latencyMs: 250,
    });
    expect([...unpackIds(record.promptTokenIds ?? new Uint8Array())]).toEqual([1, 2]);
    expect([...unpackIds(record.responseTokenIds ?? new Uint8Array())]).toEqual([7, 8]);
    expect([...unpackFloats(record.behaviourLogprobs ?? new Uint8Array())]).toEqual([-0.25, -0.5]);
  });

  it.each([
    ["no prompt ids", { prompt_token_ids: undefined }, {}, "no_token_ids"],
    ["no response ids", {}, { token_ids: undefined }, "no_token_ids"],
    ["ids that are no whole numbers", {}, { token_ids: [1.5, 2] }, "no_token_ids"],
    ["fewer ids than were counted", { usage: { prompt_tokens: 2, completion_tokens: 3 } }, {}, "token_ids_incomplete"],
  ])("says that RL cannot train on an answer with %s", (_what, change, choiceChange, error) => {
    expect(captured(change, choiceChange).record(OK)).toMatchObject({ trainable: false, error });
  });

  it.each([
    ["a missing logprob", { logprobs: { content: [{ token: "a", logprob: -1 }] } }],
    ["no logprobs", { logprobs: undefined }],
  ])("keeps an answer with %s for algorithms that need none, and says so", (_what, choiceChange) => {
    expect(captured({}, choiceChange).record(OK)).toMatchObject({ trainable: true, error: "logprobs_incomplete" });
  });

  it("is not trainable when the agent did not get the answer, whatever came of it", () => {
    const end = { ...OK, httpStatus: 499, error: "client_disconnected" };
    expect(captured().record(end)).toMatchObject({ trainable: false, error: "client_disconnected" });
  });

  it("knows another model's answer from the one that was asked for", () => {
    expect(captured().answeredByAnother).toBe(false);
    expect(captured({ model: "t~flight@12" }).answeredByAnother).toBe(true);
    expect(captured({ model: undefined }).answeredByAnother).toBe(true);
  });

  it.each([
    ["t~flight@12", "flight@12"],
    ["flight@13", "another tenant's version"],
    ["u~flight@13", "another tenant's version"],
    ["something-else", "something-else"],
    [undefined, null],
  ])("refuses an answer by %s, and tells the tenant of %s", (model, told) => {
    const capture = captured({ model });
    expect(capture.answeredByAnother).toBe(true);
    expect(capture.record(OK).modelAnswered).toBe(told);
  });

  it("counts from the ids where the endpoint sends no usage", () => {
    expect(captured({ usage: undefined }).wholeUsage).toEqual({
      prompt_tokens: 2,
      completion_tokens: 2,
      total_tokens: 4,
    });
  });

  it("gathers a stream's chunks into the same record", () => {
    const capture = new Capture(start);
    capture.target = { policy: "flight", version: 13 };
    const chunks: [Record<string, unknown>, Record<string, unknown>][] = [
      [{ model: "t~flight@13", prompt_token_ids: [1, 2] }, { finish_reason: null }],
      [
        { model: "t~flight@13" },
        { token_ids: [7], logprobs: { content: [{ token: "a", logprob: -0.25 }] }, finish_reason: null },
      ],
      [
        { model: "t~flight@13" },
        { token_ids: [8], logprobs: { content: [{ token: "b", logprob: -0.5 }] }, finish_reason: "stop" },
      ],
    ];
    for (const [chunk, choice] of chunks) capture.takeChunk(chunk, choice);
    capture.takeChunk({ usage: { prompt_tokens: 2, completion_tokens: 2 } }, undefined);
    capture.content = "ab";
    expect(capture.record(OK)).toEqual(captured().record(OK));
  });
});

describe("wholeToolCalls", () => {
  it("keeps ids, replaces empty and repeated ones, and makes arguments text", () => {
    let made = 0;
    const calls = wholeToolCalls(
      [
        { id: "a", function: { name: "x", arguments: "{}" } },
        { id: "a", function: { name: "x", arguments: { k: 1 } } },
        { function: { name: "y" } },
        "junk",
      ],
      () => `new_${++made}`,
    );
    expect(calls).toEqual([
      { id: "a", type: "function", function: { name: "x", arguments: "{}" } },
      { id: "new_1", type: "function", function: { name: "x", arguments: '{"k":1}' } },
      { id: "new_2", type: "function", function: { name: "y", arguments: "{}" } },
    ]);
  });
});
