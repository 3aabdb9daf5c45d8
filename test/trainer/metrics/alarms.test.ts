import { describe, expect, it } from "vitest";
import { ALARM_NAMES, Alarms, type AlarmName, type Metrics } from "../../../trainer/metrics/alarms.ts";
import { healthyRuns } from "./healthy-runs.ts";

/** A step of a run that goes well. */
const well: Metrics = {
  reward_mean: 0.5,
  reward_std: 0.4,
  rollouts_claimed: 128,
  entropy: 0.3,
  kl_behaviour: 1e-3,
  kl_reference: 0.01,
  mismatch_kl: 1e-12,
  ess: 0.99,
  importance_weight_mean: 1,
  zero_spread_fraction: 0.1,
  dropped_stale: 0,
  truncated_fraction: 0.01,
};

/** The alarms of each step of a run. */
function raised(steps: readonly Metrics[]): AlarmName[][] {
  const alarms = new Alarms();
  return steps.map((metrics) => alarms.observe(metrics).map(({ name }) => name));
}

const after = (count: number, ...steps: readonly Metrics[]): Metrics[] => [
  ...Array.from({ length: count }, () => well),
  ...steps.map((step) => ({ ...well, ...step })),
];
const times = (count: number, step: Metrics): Metrics[] => Array.from({ length: count }, () => step);

describe("each alarm is raised at the step that makes it true, and alone", () => {
  it.each<[AlarmName, number, Metrics[]]>([
    // Means of three: 0.5, 0.37, 0.23; the last is more than half of 0.4 below the first.
    ["reward_collapse", 7, after(6, ...times(3, { reward_mean: 0.1 }))],
    ["entropy_collapse", 8, after(6, ...times(3, { entropy: 0.02 }))],
    ["kl_blow_up", 5, after(3, ...times(3, { kl_behaviour: 0.11 }))],
    ["kl_blow_up", 8, after(6, ...times(3, { kl_reference: 0.3 }))],
    ["no_spread", 6, after(2, ...times(5, { zero_spread_fraction: 0.6 }))],
    ["stale", 3, after(1, ...times(3, { dropped_stale: 50 }))],
    ["mismatch", 1, after(1, { mismatch_kl: 2e-3 })],
    ["ess", 1, after(1, { ess: 0.29 })],
    ["importance_weight", 1, after(1, { importance_weight_mean: 2.1 })],
    ["importance_weight", 0, after(0, { importance_weight_mean: 0.4 })],
    ["truncation", 8, after(6, ...times(3, { truncated_fraction: 0.2 }))],
  ])("%s at step %i", (name, at, steps) => {
    expect(raised(steps)).toEqual(steps.map((_, step) => (step === at ? [name] : [])));
  });
});

it("says what was found and what to look at", () => {
  const alarms = new Alarms();
  const found = after(6, ...times(3, { reward_mean: 0.1 })).flatMap((metrics) => alarms.observe(metrics));
  expect(found.map(({ message }) => message)).toEqual([
    "reward_mean has fallen from 0.500 at its best to 0.233, over 3 steps each; look at the rollouts of the last steps; begin again from a better version with a lower --learning-rate, or with --kl-coefficient",
  ]);
  for (const name of ALARM_NAMES) expect(name).toMatch(/^[a-z_]+$/);
});

describe("nothing is raised", () => {
  it.each<[string, Metrics[]]>([
    ["in a steady run", times(50, well)],
    [
      "by one noisy batch",
      after(10, { reward_mean: 0, entropy: 0.001, kl_behaviour: 3, truncated_fraction: 0.9 }, well),
    ],
    [
      "by a task that is solved: its entropy and its spread are gone because the reward has risen",
      after(4, ...times(20, { reward_mean: 0.98, reward_std: 0.1, entropy: 0.004, zero_spread_fraction: 0.95 })),
    ],
    [
      "where a few rollouts fall as far as chance lets them",
      after(6, ...times(3, { reward_mean: 0.2, rollouts_claimed: 8 })).map((step) => ({
        ...step,
        rollouts_claimed: 8,
      })),
    ],
    ["where nothing is measured", times(20, {})],
  ])("%s", (_, steps) => {
    expect(raised(steps).flat()).toEqual([]);
  });

  it("in real runs that went well", () => {
    const runs = healthyRuns();
    expect(runs.length).toBeGreaterThanOrEqual(2);
    for (const { name, steps } of runs) {
      expect(steps.length).toBeGreaterThanOrEqual(8);
      expect({ name, raised: raised(steps).flat() }).toEqual({ name, raised: [] });
    }
  });
});

it("is raised when rewards are 0 throughout", () => {
  const nothing = { ...well, reward_mean: 0, reward_std: 0, zero_spread_fraction: 1 };
  expect(raised(times(6, nothing))).toEqual([[], [], [], [], ["no_spread"], []]);
});

it("is raised once while its condition lasts, and again when it has been away for more than five steps", () => {
  const bad = { ess: 0.1 };
  const steps = after(1, bad, bad, ...times(4, well), bad, ...times(5, well), bad, bad);
  const found = raised(steps);
  expect(found.flatMap((names, step) => (names.length > 0 ? [step] : []))).toEqual([1, 13]);
});

it("knows which conditions are true now", () => {
  const alarms = new Alarms();
  alarms.observe({ ...well, ess: 0.1 });
  expect(alarms.active).toEqual(["ess"]);
  alarms.observe(well);
  expect(alarms.active).toEqual([]);
});
