import { describe, expect, it } from "vitest";
import type { Json } from "#shared/tables.ts";
import { tripletEvents } from "../../../../edge/routes/agl/triplet.ts";
import type { EventView } from "../../../../edge/routes/agl/wire.ts";

const event = (event_type: string, data: Record<string, Json>): EventView => ({
  event_type,
  rollout_id: "r",
  attempt_id: "0",
  timestamp: 1,
  data,
});
const request = (prompt: Json, ids: Json): EventView =>
  event("model_request", { response: { prompt_token_ids: prompt, choices: [{ token_ids: ids }] } });
const ids = (events: readonly EventView[]): Json[] => events.map(({ data }) => data["response_token_ids"] ?? null);

describe("tripletEvents", () => {
  it("keeps the last request of each prompt, in its place", () => {
    expect(ids(tripletEvents([request([1], [10]), request([2], [20]), request([1], [30])]))).toEqual([[20], [30]]);
  });

  it.each([[null], [[]], [[[1]]], [["1"]], [[true]], [[1.5]], ["text"], [{ token: 1 }]])(
    "keeps every request whose prompt is %j: there is nothing to compare",
    (prompt) => {
      const events = [request(prompt, [10]), request(prompt, [20]), request([1], [30]), request([1], [40])];
      expect(ids(tripletEvents(events))).toEqual([[10], [20], [40]]);
    },
  );

  it("gathers the ids of an answer that was kept as a stream's chunks", () => {
    const chunks = [
      { choices: [] },
      { prompt_token_ids: [1, 2], choices: [{ token_ids: [3] }] },
      { choices: [{ token_ids: null }] },
      { choices: [{ token_ids: [4, 5] }] },
    ];
    expect(tripletEvents([event("model_request", { response: chunks })])[0]?.data).toMatchObject({
      prompt_token_ids: [1, 2],
      response_token_ids: [3, 4, 5],
      response_log_probs: null,
    });
  });

  it.each([
    {},
    { response: null },
    { response: "text" },
    { response: { choices: "x" } },
    { response: { choices: [1] } },
  ])("makes empty ids of %j", (data) => {
    expect(tripletEvents([event("model_request", { ...data, server: "x" })])[0]?.data).toEqual({
      prompt_token_ids: [],
      response_token_ids: [],
      response_log_probs: null,
      server: { model: null, version: null },
    });
  });

  it("reads logprobs that are texts, and none that are not finite", () => {
    const logprobs = (raw: Json): Json | undefined =>
      tripletEvents([event("model_request", { response: { choices: [{ logprobs: { token_logprobs: raw } }] } })])[0]
        ?.data["response_log_probs"];
    expect(logprobs(["-0.5", -1])).toEqual([-0.5, -1]);
    expect(logprobs(["", -1])).toBeNull();
    expect(logprobs(["Infinity"])).toBeNull();
    expect(logprobs([])).toEqual([]);
  });

  it("gives a reward without a value one that is null", () => {
    expect(tripletEvents([event("reward", { note: 1 })])[0]?.data).toEqual({ value: null });
  });
});
