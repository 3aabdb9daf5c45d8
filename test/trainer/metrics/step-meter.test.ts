import { expect, it } from "vitest";
import { StepMeter } from "../../../trainer/metrics/step-meter.ts";

it("adds up time by phase, also of what failed, and operations", async () => {
  let now = 0;
  const spend = (ms: number) => async () => void (now += ms);
  const meter = new StepMeter(() => now);
  await meter.time("publish", async () => {
    await spend(100)();
    await meter.time("load", spend(20));
  });
  await meter.time("score", spend(5));
  const failing = meter.time("score", async () => {
    await spend(10)();
    throw new Error("no");
  });
  await expect(failing).rejects.toThrow("no");
  meter.addFlops(3);
  meter.addFlops(4);
  expect(meter.seconds).toEqual({ publish: 0.12, load: 0.02, score: 0.015 });
  expect(meter.flops).toBe(7);
});
