import { expect, test } from "vitest";
import type { RunEvent } from "#shared/run-events.ts";
import { followRun } from "../../../cli/terminal/follow-run.ts";
import { createScreen } from "../../../cli/terminal/screen.ts";
import { parseEvent } from "../../../cli/parts/trainer.ts";

const estimate = { mean: 0.31, low: 0.27, high: 0.35 };

const RUN: readonly RunEvent[] = [
  { event: "run", run_id: "ru_1", policy: "flight", steps: 2, resumed_from_step: null },
  { event: "evaluating", phase: "before", done: 1, total: 64 },
  {
    event: "evaluation",
    phase: "before",
    result: {
      version: "flight@0",
      reward: estimate,
      first_tool: estimate,
      correct: estimate,
      n: 63,
      failed: 1,
      wall_s: 9,
    },
  },
  { event: "step", step: 1, steps: 2, version: "flight@1", metrics: { reward_mean: 0.25 }, seconds_left: 5 },
  { event: "warning", message: "the store was away for 3 s" },
  { event: "step", step: 2, steps: 2, version: "flight@2", metrics: { reward_mean: 0.5 }, seconds_left: 0 },
  { event: "done", summary_path: "summary.json" },
];

function shown(events: readonly RunEvent[]): string[] {
  const written: string[] = [];
  const screen = createScreen({ out: { write: (text) => written.push(text) }, env: {}, now: () => 0 });
  const follow = followRun({ screen, firstToolName: "memory_first" });
  for (const event of events) follow(event);
  return written.join("").trimEnd().split("\n");
}

test("a run reads from top to bottom in plain lines", () => {
  expect(shown(RUN)).toEqual([
    "run ru_1: 2 steps of policy flight",
    "before: reward 0.310 [0.270, 0.350], memory first 31% [27%, 35%], correct 31% [27%, 35%] (63 rollouts of flight@0, 1 failed, 9s)",
    "step 1/2  reward  0.250  ▁  left 5s",
    "! the store was away for 3 s",
    "step 2/2  reward  0.500  ▁█  left 0s",
  ]);
});

test("a step that is told again after a restart counts once", () => {
  const [step] = RUN.filter(({ event }) => event === "step");
  const lines = shown(step === undefined ? [] : [step, step]);
  expect(lines).toEqual(["step 1/2  reward  0.250  ▁  left 5s", "step 1/2  reward  0.250  ▁  left 5s"]);
});

test("a resumed run says how far it was", () => {
  expect(shown([{ event: "run", run_id: "ru_1", policy: "flight", steps: 9, resumed_from_step: 4 }])).toEqual([
    "run ru_1 goes on after 4 of 9 steps",
  ]);
});

test("lines that are no events are let pass", () => {
  expect(parseEvent("(node:1) ExperimentalWarning")).toBeUndefined();
  expect(parseEvent('{"event":"unheard-of"}')).toBeUndefined();
  expect(parseEvent(JSON.stringify(RUN[4]))).toEqual(RUN[4]);
});

test("says why a run is paused", () => {
  const message = "paused after step 2 by ess; flight@1 goes on serving";
  expect(shown([{ event: "paused", step: 2, version: "flight@1", message }])).toEqual([`! ${message}`]);
});
