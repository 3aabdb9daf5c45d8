import { expect, it } from "vitest";
import { labelledKey, parseKey } from "../../../trainer/metrics/key.ts";

it("a labelled key is read back, whatever the value holds", () => {
  expect(labelledKey("reward_mean", "task", "flight/7")).toBe("reward_mean/task/flight/7");
  expect(parseKey("reward_mean/task/flight/7")).toEqual({ name: "reward_mean", label: "task", value: "flight/7" });
  expect(parseKey(labelledKey("staleness_rollouts", "versions", 0))).toEqual({
    name: "staleness_rollouts",
    label: "versions",
    value: "0",
  });
});

it.each(["entropy", "entropy/task", "entropy/colour/red"])("%s has no label", (key) => {
  expect(parseKey(key)).toEqual({ name: key });
});
