import { expect, test } from "vitest";
import { timeLeft } from "../../../cli/ablate/time-left.ts";

test("nothing is known before the first run tells of a step", () => {
  expect(timeLeft({ finished: [], elapsed: 10, left: undefined, runsAfter: 3 })).toBeUndefined();
});

test("the run under way tells how long the ones after it will take", () => {
  expect(timeLeft({ finished: [], elapsed: 10, left: 30, runsAfter: 3 })).toBe(30 + 3 * 40);
});

test("ended runs count beside it", () => {
  expect(timeLeft({ finished: [50, 60], elapsed: 10, left: 30, runsAfter: 2 })).toBe(30 + 2 * 50);
});

test("without an estimate of its own, a run takes what the ended ones took", () => {
  expect(timeLeft({ finished: [60], elapsed: 10, left: undefined, runsAfter: 1 })).toBe(50 + 60);
  expect(timeLeft({ finished: [60], elapsed: 90, left: undefined, runsAfter: 1 })).toBe(60);
});
