import { describe, expect, it } from "vitest";
import { deletionText } from "../../../cli/commands/subjects.ts";

describe("deletionText", () => {
  it("says what was deleted, and what was learned from it before", () => {
    const text = deletionText({
      subject: "alice",
      rollouts: 7,
      dropped: 4,
      claimed: [{ batch_id: "ba_1", run_id: "ru_1", step: 9, rollouts: 2 }],
      trained: [{ batch_id: "ba_0", run_id: "ru_1", policy: "flight", version: 8, rollouts: 3 }],
    });
    expect(text.split("\n")).toEqual([
      "deleted what 7 rollouts of alice held; 4 of them will not be trained on",
      "2 were in batch ba_1 (step 9), which is under way: its trainer may have read them",
      "3 were trained into flight@8 before (batch ba_0)",
      expect.stringContaining("descend"),
    ]);
    expect(deletionText({ subject: "bob", rollouts: 0, dropped: 0, claimed: [], trained: [] })).toBe(
      "nothing is kept of bob",
    );
  });
});
