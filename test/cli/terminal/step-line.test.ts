import { expect, test } from "vitest";
import { stepLine } from "../../../cli/terminal/step-line.ts";
import { PLAIN } from "../../../cli/terminal/style.ts";

const facts = {
  step: 7,
  steps: 60,
  metrics: {
    reward_mean: 0.3124,
    first_tool_rate: 0.54,
    advantage_spread: 0.31,
    kl_behaviour: 0.00042,
    staleness_mean: 0.9,
    tokens_per_s_decode: 2143,
    tokens_per_s_train: 3412,
  },
  secondsLeft: 250,
};
const options = { style: PLAIN, rewards: [0.1, 0.2, 0.3124], firstToolName: "memory_first" };

test("a step is one line with all that the run's watcher needs", () => {
  expect(stepLine(facts, { ...options, columns: Number.POSITIVE_INFINITY })).toBe(
    "step  7/60  reward  0.312  memory first  54%  ▁▄█  left 4m10s  spread 0.31  KL 4.2e-4  stale 0.9  tokens/s 2.1k out, 3.4k trained",
  );
});

test("a narrow terminal loses whole fields from the right", () => {
  expect(stepLine(facts, { ...options, columns: 60 })).toBe("step  7/60  reward  0.312  memory first  54%  ▁▄█");
});

test("a metric that did not come is left out", () => {
  expect(stepLine({ ...facts, metrics: { reward_mean: 1 } }, { ...options, columns: 200 })).toBe(
    "step  7/60  reward  1.000  ▁▄█  left 4m10s",
  );
});
