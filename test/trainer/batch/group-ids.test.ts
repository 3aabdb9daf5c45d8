import { describe, expect, it } from "vitest";
import { nextGroupId, rolloutIdOf, startedAtStep } from "../../../trainer/batch/group-ids.ts";

describe("group ids", () => {
  it("count up, in the order of their text, and tell the step they were started at", () => {
    let last: string | undefined;
    const made: string[] = [];
    for (let at = 0; at < 12; at += 1) {
      const next = nextGroupId("ru_1", last, at);
      expect(next.index).toBe(at);
      made.push((last = next.groupId));
    }
    expect(made.toSorted()).toEqual(made);
    expect(made.map(startedAtStep)).toEqual(Array.from({ length: 12 }, (_, at) => at));
    expect(rolloutIdOf(made[0] ?? "", 7)).toBe("ro_ru_1_0000000_0_007");
  });

  it("refuse a group that somebody else put into the run", () => {
    expect(() => nextGroupId("ru_1", "gr_foreign", 0)).toThrow(
      "group gr_foreign belongs to the run but was not started by its trainer",
    );
  });
});
