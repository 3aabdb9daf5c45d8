import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { DecodePool, type RunningSequence } from "../../../trainer/inference/decode-pool.ts";
import { type Loader, startLoader } from "../../../trainer/inference/loader.ts";
import type { TokenReport } from "../../../trainer/inference/protocol.ts";
import { writeTinyModel } from "./tiny-model.ts";

const OPTIONS = { maxSequences: 8, prefixCacheBytes: 0, prefillTokensPerStep: 64 };
const SAMPLING = { temperature: 1, topP: 1, topK: 0, seed: 3 };

let dir: string;
let loader: Loader;

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-pool-"));
  await writeTinyModel(dir);
  loader = await startLoader(dir, { maxContextTokens: 512, precision: "fp32" });
});

afterAll(async () => {
  await loader.close();
  await rm(dir, { recursive: true });
});

test("a thread that stands still for a version answers by it first, and then goes on with the others", async () => {
  const { pool, load } = await poolWith(1, "old");
  const graph = await built();
  const order: string[] = [];
  pool.hold("new");
  const before = ask(pool, "old", () => order.push("old"));
  const loading = load("new", graph);
  const after = ask(pool, "new", () => order.push("new"));
  await Promise.all([loading, before.tokens, after.tokens]);
  expect(order).toEqual(["new", "old"]);
});

test("a version answers from the first thread that has it, whichever is idle", async () => {
  const { pool, load } = await poolWith(2, "old");
  const busy = ask(pool, "old", () => {}, 400);
  expect(busy.sequence.thread).toBe(0);
  pool.hold("new");
  await load("new", await built());
  const answers = [ask(pool, "new", () => {}), ask(pool, "new", () => {}), ask(pool, "new", () => {})];
  // The idler thread has it first.
  expect(answers[0]?.sequence.thread).toBe(1);
  for (const { tokens } of answers) expect(await tokens).toHaveLength(4);
  busy.sequence.cancel();
});

test("a version that is dropped while threads still load it is gone from all of them, and can come back", async () => {
  const { pool, load } = await poolWith(3, "old");
  await load("new", await built());
  await pool.unload("new");
  await expect(ask(pool, "new", () => {}).tokens).rejects.toThrow("Version new is not loaded");
  await load("new", await built());
  expect(await ask(pool, "new", () => {}).tokens).toHaveLength(4);
});

test("a graph that the runtime refuses is loaded nowhere, and its thread goes on", async () => {
  const { pool, load } = await poolWith(1, "old");
  pool.hold("new");
  await expect(load("new", new Uint8Array(100).fill(7))).rejects.toThrow("The runtime refused new");
  expect(await ask(pool, "old", () => {}).tokens).toHaveLength(4);
});

test("a thread that was stopped for nothing goes on", async () => {
  const { pool } = await poolWith(1, "old");
  pool.hold("new");
  const { tokens } = ask(pool, "old", () => {});
  pool.release("new");
  expect(await tokens).toHaveLength(4);
});

test("closing in the middle of an answer ends the threads and nothing else", async () => {
  const { pool } = await poolWith(2, "old");
  const started = Promise.withResolvers<void>();
  ask(pool, "old", started.resolve, 400);
  await started.promise;
  await pool.close();
  expect(pool.sequences).toBe(1);
});

async function built(): Promise<Uint8Array> {
  return (await loader.build("any", null)).graph;
}

async function poolWith(
  threads: number,
  version: string,
): Promise<{ pool: DecodePool; load: (version: string, graph: Uint8Array) => Promise<void> }> {
  const pool = new DecodePool(threads, (error) => {
    throw error;
  });
  onTestFinished(() => pool.close());
  const load = (name: string, graph: Uint8Array): Promise<void> => pool.load(name, graph, loader.architecture, OPTIONS);
  await load(version, await built());
  return { pool, load };
}

/** Asks for tokens of a short prompt. @param onFirst called with the first of them */
function ask(
  pool: DecodePool,
  version: string,
  onFirst: () => void,
  maxTokens = 4,
): { sequence: RunningSequence; tokens: Promise<number[]> } {
  const done = Promise.withResolvers<number[]>();
  const sampled: number[] = [];
  const sequence = pool.submit(
    version,
    { prompt: Int32Array.of(5, 6, 7), maxTokens, sampling: SAMPLING, adjustments: null, stopIds: [], topLogprobs: 0 },
    {
      tokens: ({ tokens, finish }: TokenReport) => {
        if (sampled.length === 0) onFirst();
        sampled.push(...tokens);
        if (finish !== null) done.resolve(sampled);
      },
      fail: done.reject,
    },
    { report: "each" },
  );
  return { sequence, tokens: done.promise };
}
