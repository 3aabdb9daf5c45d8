import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { airReward, airRewards } from "../../../edge/record/air.ts";

const OPTIONS = {
  tenantId: "default",
  rolloutId: "ro_1",
  attempt: 2,
  tools: { memory: 0.3, search: 0.2 },
  now: 1000,
};

function asks(...tools: readonly (readonly [id: string, name: string])[]) {
  return {
    role: "assistant",
    content: null,
    tool_calls: tools.map(([id, name]) => ({ id, type: "function", function: { name, arguments: "{}" } })),
  };
}

const answers = (id: string, content: unknown, more: object = {}) => ({
  role: "tool",
  tool_call_id: id,
  content,
  ...more,
});

describe("airRewards", () => {
  it("gives plus or minus the tool's weight for each result, joined by tool call id", () => {
    const rewards = airRewards(
      [
        { role: "system", content: "You book flights." },
        { role: "user", content: "Book." },
        asks(["c1", "memory"]),
        answers("c1", '{"error": "unknown traveller"}'),
        asks(["c2", "memory"], ["c3", "search"]),
        answers("c3", '["SAS12"]'),
        answers("c2", '{"when": "noon"}'),
      ],
      OPTIONS,
    );
    expect(rewards.map(({ key, name, value }) => ({ key, name, value }))).toEqual([
      { key: "air:ro_1:2:c1", name: "memory", value: -0.3 },
      { key: "air:ro_1:2:c3", name: "search", value: 0.2 },
      { key: "air:ro_1:2:c2", name: "memory", value: 0.3 },
    ]);
    expect(rewards[0]).toMatchObject({
      tenantId: "default",
      rolloutId: "ro_1",
      attempt: 2,
      source: "air",
      createdAt: 1000,
      detail: { tool_call_id: "c1", succeeded: false },
    });
  });

  it("counts a tool call once however often its result is in the request", () => {
    const messages = [asks(["c1", "memory"]), answers("c1", "ok"), answers("c1", '{"error": "no"}')];
    expect(airRewards(messages, OPTIONS).map((reward) => reward.value)).toEqual([0.3]);
  });

  it("gives the same keys for the same results in a later, longer request", () => {
    const turn = [asks(["c1", "memory"]), answers("c1", "ok")];
    const later = [...turn, asks(["c2", "search"]), answers("c2", "[]")];
    const keys = (messages: unknown) => airRewards(messages, OPTIONS).map((reward) => reward.key);
    expect(keys(later).slice(0, 1)).toEqual(keys(turn));
  });

  it("earns nothing for tools without a weight, and for results that name no tool", () => {
    const messages = [asks(["c1", "calendar"], ["c2", "toString"]), answers("c1", "ok"), answers("c2", "ok")];
    expect(airRewards([...messages, answers("c9", "ok")], OPTIONS)).toEqual([]);
    expect(airRewards([...messages, answers("c9", "ok", { name: "search" })], OPTIONS)).toMatchObject([
      { name: "search", value: 0.2 },
    ]);
  });

  it("reads content in parts and results without content", () => {
    const messages = [
      asks(["c1", "memory"], ["c2", "search"]),
      answers("c1", [
        { type: "text", text: "Err" },
        { type: "text", text: "or: no such traveller" },
        { type: "image" },
      ]),
      answers("c2", null),
    ];
    expect(airRewards(messages, OPTIONS).map((reward) => reward.value)).toEqual([-0.3, 0.2]);
  });

  it("never throws and never gives a key twice, whatever the messages are", () => {
    const id = fc.constantFrom("c1", "c2", "c3", "");
    const message = fc.oneof(
      fc.jsonValue(),
      fc.tuple(id, fc.constantFrom("memory", "search", "other")).map((call) => asks(call)),
      fc.tuple(id, fc.oneof(fc.string(), fc.jsonValue())).map(([call, content]) => answers(call, content)),
    );
    fc.assert(
      fc.property(fc.oneof(fc.jsonValue(), fc.array(message)), (messages) => {
        const rewards = airRewards(messages, OPTIONS);
        expect(new Set(rewards.map((reward) => reward.key)).size).toBe(rewards.length);
        for (const { name, value } of rewards) expect(Math.abs(value)).toBe(name === "memory" ? 0.3 : 0.2);
      }),
      { seed: 3 },
    );
  });
});

describe("airRewards with success rules", () => {
  it("judges each tool by its own rules, and the others by the default", () => {
    const success = { memory: { empty_is_error: true }, search: { http_error_from: 400 } };
    const messages = [
      asks(["c1", "memory"], ["c2", "search"], ["c3", "memory"]),
      answers("c1", "[]"),
      answers("c2", '{"status": 404}'),
      answers("c3", '{"error": "found"}'),
    ];
    expect(airRewards(messages, { ...OPTIONS, success }).map((reward) => reward.value)).toEqual([-0.3, -0.2, 0.3]);
    expect(airRewards(messages, OPTIONS).map((reward) => reward.value)).toEqual([0.3, 0.2, -0.3]);
  });

  it("gives no signal where a rule's pattern cannot be used, and never throws", () => {
    const success = { memory: { error_pattern: "(?=x)" } };
    const messages = [asks(["c1", "memory"], ["c2", "search"]), answers("c1", "ok"), answers("c2", "ok")];
    expect(airRewards(messages, { ...OPTIONS, success })).toMatchObject([{ name: "search" }]);
  });
});

describe("airReward", () => {
  const outcome = { toolCallId: "c1", tool: "memory", succeeded: false };

  it("has the same key through whichever channel the outcome was seen", () => {
    const [seen] = airRewards([asks(["c1", "memory"]), answers("c1", "error")], OPTIONS);
    for (const channel of ["span", "event"] as const) {
      expect(airReward(outcome, OPTIONS, channel)).toMatchObject({
        key: seen?.key,
        value: -0.3,
        detail: { tool_call_id: "c1", succeeded: false, seen: channel },
      });
    }
  });

  it("is none for a tool without a weight and for an id that cannot be a key", () => {
    expect(airReward({ ...outcome, tool: "calendar" }, OPTIONS)).toBeUndefined();
    expect(airReward({ ...outcome, tool: "toString" }, OPTIONS)).toBeUndefined();
    expect(airReward({ ...outcome, toolCallId: "" }, OPTIONS)).toBeUndefined();
    expect(airReward({ ...outcome, toolCallId: "c".repeat(257) }, OPTIONS)).toBeUndefined();
  });
});
