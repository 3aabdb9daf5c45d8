import { expect, it } from "vitest";
import type { TrainStepView } from "#shared/wire.ts";
import { stepsFollower } from "../../../edge/dashboard/steps.ts";

const step = (number: number, metrics: Record<string, number> = {}): TrainStepView => ({
  ...{ step: number, batchId: `ba_${number}`, policy: "flight", version: number + 1, metrics, createdAt: 0 },
});

it("asks for all of a run's steps once, then for the last one and what is new, and begins anew with another run", async () => {
  const asked: [string, number | undefined][] = [];
  let steps: TrainStepView[] = [];
  const follow = stepsFollower(async (runId, since) => {
    asked.push([runId, since]);
    return steps.filter((each) => each.step > (since ?? -1));
  });
  expect(await follow("r1")).toEqual([]);
  steps = [step(0), step(1)];
  expect(await follow("r1")).toEqual(steps);
  // The last one has gained a metric, and there is one more.
  steps = [step(0), step(1, { seconds_publish: 0.2 }), step(2)];
  expect(await follow("r1")).toEqual(steps);
  expect(await follow("r1")).toEqual(steps);
  steps = [step(0)];
  expect(await follow("r2")).toEqual(steps);
  expect(await follow("r2")).toEqual(steps);
  expect(asked).toEqual([
    ["r1", undefined],
    ["r1", undefined],
    ["r1", 0],
    ["r1", 1],
    ["r2", undefined],
    ["r2", -1],
  ]);
});

it("keeps what it has when a question fails", async () => {
  let isAway = false;
  const follow = stepsFollower(async (_, since) => {
    if (isAway) throw new Error("away");
    return [step(0), step(1)].filter((each) => each.step > (since ?? -1));
  });
  await follow("r1");
  isAway = true;
  await expect(follow("r1")).rejects.toThrow("away");
  isAway = false;
  expect(await follow("r1")).toEqual([step(0), step(1)]);
});
