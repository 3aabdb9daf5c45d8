import { describe, expect, it } from "vitest";
import { selectCalls } from "../../../trainer/credit/roles.ts";

const calls = [
  { callId: "a", role: "writer" },
  { callId: "b", role: "checker" },
  { callId: "c", role: "rewriter" },
];

describe("selectCalls", () => {
  it("keeps the calls of trained roles, in order, and leaves the frozen one out", () => {
    expect(selectCalls(calls, ["rewriter", "writer"]).map((call) => call.callId)).toEqual(["a", "c"]);
    expect(selectCalls(calls, ["planner"])).toEqual([]);
  });

  it("keeps all where nothing is selected", () => {
    expect(selectCalls(calls, undefined)).toBe(calls);
  });
});
