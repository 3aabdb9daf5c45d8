import { describe, expect, it } from "vitest";
import { selectCalls, selectionSchema } from "../../../trainer/credit/roles.ts";

const calls = [
  { callId: "a", role: "writer" },
  { callId: "b", role: "checker" },
  { callId: "c", role: "rewriter" },
];
const ids = (given: object, agent = "sql") =>
  selectCalls(calls, agent, selectionSchema.parse(given)).map((call) => call.callId);

describe("selectCalls", () => {
  it("keeps the calls of trained roles, in order, and leaves the frozen one out", () => {
    expect(ids({ roles: ["rewriter", "writer"] })).toEqual(["a", "c"]);
  });

  it("keeps all where nothing is selected, and none of an agent that is not", () => {
    expect(ids({})).toEqual(["a", "b", "c"]);
    expect(ids({ agents: ["sql"] })).toEqual(["a", "b", "c"]);
    expect(ids({ agents: ["rag"], roles: ["writer"] })).toEqual([]);
  });

  it("refuses an empty selection, which would train nothing without a word", () => {
    expect(selectionSchema.safeParse({ roles: [] }).success).toBe(false);
    expect(selectionSchema.safeParse({ agents: [] }).success).toBe(false);
  });
});
