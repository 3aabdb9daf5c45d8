/**
 * Our side of the update benchmark, as a process: the trainer's own functions from claimed rollouts to moved weights.
 * Started with runtime-time.ts preloaded; speaks protocol.ts.
 */

import { createInterface } from "node:readline";
import { BroadcastChannel } from "node:worker_threads";
import { PRESETS } from "../../trainer/algorithm.ts";
import { buildTrajectory } from "../../trainer/batch/trajectories.ts";
import { createOnnxEngine } from "../../trainer/engine/onnx/engine.ts";
import { planMicrobatches } from "../../trainer/engine/onnx/microbatch.ts";
import type { OnnxEngineOptions } from "../../trainer/engine/options.ts";
import { learn } from "../../trainer/learn.ts";
import type { RolloutRecord } from "../../trainer/records.ts";
import type { OurSetup, OurUpdate, Ready } from "./protocol.ts";
import { ADVANTAGE, groupsOf, recordsOf } from "./records.ts";
import { ASK, type ThreadTime, TIME_CHANNEL } from "./runtime-time.ts";

const MAX_TOKENS_PER_MICROBATCH = 1536;

const channel = new BroadcastChannel(TIME_CHANNEL);
const answers: ThreadTime[] = [];
let answered = (): void => undefined;
channel.addEventListener("message", (event) => {
  if (!("data" in event) || event.data === ASK) return;
  // Nobody else speaks on it.
  answers.push(event.data as ThreadTime);
  answered();
});

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const first = await lines.next();
if (first.done === true) process.exit(1);
// The parent and this file share protocol.ts.
const setup = JSON.parse(first.value) as OurSetup;
const { model: modelDir, method, threads, klCoefficient, learningRate } = setup;
const options: OnnxEngineOptions = {
  modelDir,
  method: { type: method },
  threads,
  maxTokensPerMicrobatch: MAX_TOKENS_PER_MICROBATCH,
};
const engine = await createOnnxEngine(options);
const reference = klCoefficient > 0 ? await createOnnxEngine(options) : undefined;
if (method === "lora") await engine.exportAdapter(setup.adapter);
const allThreads = 1 + threads * (reference === undefined ? 1 : 2);
const records = await recordsOf(setup.rollouts, engine);
say(sizes(records));

for await (const line of lines) {
  if (line !== "go") break;
  say(await update());
}
await engine.close();
await reference?.close();
channel.close();

async function update(): Promise<OurUpdate> {
  const spent = { score: 0, backward: 0, step: 0 };
  const timed = async <T>(phase: keyof typeof spent, work: () => Promise<T>): Promise<T> => {
    const startedAt = performance.now();
    const result = await work();
    spent[phase] += performance.now() - startedAt;
    return result;
  };
  const before = await threadTimes();
  const startedAt = performance.now();
  const report = await learn(groupsOf(records).groups, {
    engine: {
      score: (samples) => timed("score", () => engine.score(samples)),
      backward: (samples, cotangents) => timed("backward", () => engine.backward(samples, cotangents)),
      step: (step) => timed("step", () => engine.step(step)),
    },
    ...(reference === undefined
      ? {}
      : { reference: { score: (samples) => timed("score", () => reference.score(samples)) } }),
    loss: { ...PRESETS.grpo.loss, klCoefficient },
    advantage: ADVANTAGE,
    learningRate,
    maxGradNorm: 1,
    updates: 1,
    now: () => performance.now(),
  });
  const ms = performance.now() - startedAt;
  const after = await threadTimes();
  const used = (pick: (times: readonly ThreadTime[]) => number): number => pick(after) - pick(before);
  const runtime = used((times) => sum(times.map(({ inRuntime }) => inRuntime)));
  const workers = used((times) => sum(times.filter(({ isMain }) => !isMain).map(({ busy }) => busy)));
  const main = used((times) => sum(times.filter(({ isMain }) => isMain).map(({ busy }) => busy)));
  return {
    ms,
    gradNorm: report.grad_norm,
    scoreMs: spent.score,
    backwardMs: spent.backward,
    stepMs: spent.step,
    runtime: runtime / (threads * ms),
    // While the main thread works, all others wait for it.
    typescript: (workers - runtime + threads * main) / (threads * ms),
  };
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

/** Of all threads of this process. */
async function threadTimes(): Promise<ThreadTime[]> {
  answers.length = 0;
  const all = new Promise<void>((resolve) => {
    answered = () => {
      if (answers.length === allThreads) resolve();
    };
  });
  // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a channel has no origin
  channel.postMessage(ASK);
  await all;
  return [...answers];
}

function sizes(rollouts: readonly RolloutRecord[]): Ready {
  const rows = rollouts.flatMap(({ calls }) => buildTrajectory(calls).rows);
  const plan = planMicrobatches(rows, null, { maxTokens: MAX_TOKENS_PER_MICROBATCH, replicas: threads });
  return {
    version: process.version,
    rows: rows.length,
    tokens: rows.reduce((sum, { tokens }) => sum + tokens.length, 0),
    paddedTokens: plan.reduce((sum, { microbatch }) => sum + microbatch.tokens.length, 0),
  };
}

function say(answer: Ready | OurUpdate): void {
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
