import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { nextGroupId, rolloutIdOf } from "../../trainer/batch/group-ids.ts";
import { sift } from "../../trainer/batch/sift.ts";
import { algorithmOf, engineOptions, type TrainerConfig } from "../../trainer/config.ts";
import type { Engine } from "../../trainer/engine/contract.ts";
import { createOnnxEngine } from "../../trainer/engine/onnx/engine.ts";
import { Random } from "../../trainer/engine/random.ts";
import { learn } from "../../trainer/learn.ts";
import { trainRun, type LoopDeps } from "../../trainer/loop.ts";
import type { RolloutRecord } from "../../trainer/records.ts";
import { writeTinyModel } from "./inference/tiny-model.ts";
import { World } from "./support/world.ts";

/**
 * Asynchronous training at K = 0 is synchronous training, to the bit: the loop with all its machinery, whatever the order
 * in which rollouts end and the store tells of them, against a dozen lines that sample, learn and repeat. What a rollout
 * says follows from its id, and its log-probabilities are those of the very version that answered it, so a batch with a
 * wrong rollout, a wrong version or another order would come to other weights.
 */

const STEPS = 4;
const GROUPS = 3;
const GROUP_SIZE = 4;

let home: string;
/** Adapter bytes by version, as the plain loop has them. */
let expected: Buffer[];

beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), "fulgur-asynchrony-"));
  const { config, modelDir } = await newWorld("plain");
  expected = await trainPlainly(config, modelDir, join(home, "plain", "versions"));
}, 60_000);
afterAll(() => rm(home, { recursive: true, force: true }));

async function newWorld(name: string, given: Partial<TrainerConfig> = {}) {
  const world = new World(join(home, name));
  const modelDir = world.baseArtifact;
  await writeTinyModel(modelDir, { seed: 3 });
  await world.prepare();
  world.rewardOf = ({ id }) => rewardOf(id);
  const config = world.config({
    ...{ steps: STEPS, groups: GROUPS, groupSize: GROUP_SIZE, evalTasks: 0, loraRank: 4, loraAlpha: 8 },
    ...{ learningRate: 0.01, keepVersions: 100 },
    ...given,
  });
  return { world, config, modelDir };
}

const seedOf = (id: string): Random =>
  Random.seeded(Buffer.from(id).reduce((hash, byte) => (Math.imul(hash, 31) + byte) | 0, 7));
const rewardOf = (id: string): number => seedOf(id).next();

/** What was said in a rollout, and what the version that answered thinks of it. */
async function withCalls(
  records: readonly Omit<RolloutRecord, "calls">[],
  { scorer, version }: { readonly scorer: Pick<Engine, "score">; readonly version: number },
): Promise<RolloutRecord[]> {
  const spoken = records.map(({ id }) => {
    const random = seedOf(id);
    const words = (count: number): number[] => Array.from({ length: count }, () => Math.floor(random.next() * 256));
    return { prompt: words(5), response: words(3 + Math.floor(random.next() * 6)) };
  });
  const scores = await scorer.score(
    spoken.map(({ prompt, response }) => ({
      tokens: Int32Array.from([...prompt, ...response]),
      lossMask: Uint8Array.from([...prompt.map(() => 0), ...response.map(() => 1)]),
    })),
  );
  return records.map((record, at) => ({
    ...record,
    calls: [
      {
        callId: `ca_${record.id}`,
        role: "main",
        promptTokenIds: Int32Array.from(spoken[at]?.prompt ?? []),
        responseTokenIds: Int32Array.from(spoken[at]?.response ?? []),
        behaviourLogprobs: scores[at]?.logprobs.subarray(5) ?? null,
        policyVersion: version,
        trainable: true,
        toolCallIds: [],
        finishReason: "stop",
        startedAt: 0,
        latencyMs: 1,
      },
    ],
  }));
}

/** The whole algorithm without a store, a queue or a line of rollouts. */
async function trainPlainly(config: TrainerConfig, modelDir: string, versions: string): Promise<Buffer[]> {
  const engine = await createOnnxEngine(engineOptions(config, { modelDir }));
  const { credit, advantage, loss } = algorithmOf(config);
  const { learningRate, maxGradNorm } = config;
  const weights: Buffer[] = [];
  let last: string | undefined;
  for (let step = 0; step < STEPS; step += 1) {
    const batch = Array.from({ length: GROUPS }, () => {
      const { groupId } = nextGroupId(config.run, last, step);
      last = groupId;
      return Array.from({ length: GROUP_SIZE }, (_, member) => {
        const id = rolloutIdOf(groupId, member);
        const facts = { taskId: null, status: "finished", outcome: null, intermediate: [] } as const;
        return { id, groupId, reward: rewardOf(id), ...facts };
      });
    }).flat();
    const records = await withCalls(batch, { scorer: engine, version: step });
    const options = {
      credit,
      advantage,
      lineage: { base: 0, made: [1, 2, 3, 4, 5, 6, 7, 8, 9] },
      step,
      maxStaleness: 0,
    };
    const { groups } = sift(records, options);
    await learn(groups, { engine, loss, advantage, learningRate, maxGradNorm, updates: 1, now: () => 0 });
    const folder = join(versions, String(step + 1));
    await engine.exportAdapter(folder);
    weights.push(await readFile(join(folder, "adapter_model.safetensors")));
  }
  await engine.close();
  return weights;
}

/** The run's dependencies with the real engine, and rollouts that say something. */
function onRealWeights(world: World, config: TrainerConfig): LoopDeps {
  const deps = world.deps(config);
  const versions = join(world.baseArtifact, "..");
  return {
    ...deps,
    openEngine: (start) => createOnnxEngine(engineOptions(config, start)),
    records: {
      ...deps.records,
      batchRollouts: async (id) => {
        const found = await deps.records.batchRollouts(id);
        const version = found[0]?.calls[0]?.policyVersion ?? 0;
        if (found.some(({ calls }) => calls[0]?.policyVersion !== version)) throw new Error("a batch of two versions");
        const adapterDir = version === 0 ? undefined : join(versions, String(version));
        const scorer = await createOnnxEngine(engineOptions(config, { modelDir: world.baseArtifact, adapterDir }));
        const records = await withCalls(found, { scorer, version });
        await scorer.close();
        return records;
      },
    },
  };
}

async function weightsOf(world: World): Promise<Buffer[]> {
  return Promise.all(
    Array.from({ length: STEPS }, (_, step) =>
      readFile(join(world.baseArtifact, "..", String(step + 1), "adapter_model.safetensors")),
    ),
  );
}

function expectSame(weights: readonly Buffer[]): void {
  expect(weights.map((each, step) => expected[step]?.equals(each))).toEqual(expected.map(() => true));
}

describe("asynchronous training at K = 0", { timeout: 120_000 }, () => {
  it("is not vacuous: each step moves the weights", () => {
    expect(expected).toHaveLength(STEPS);
    expect(new Set(expected.map((each) => each.toString("base64"))).size).toBe(STEPS);
  });

  it("comes to the weights of a plain synchronous loop, step for step", async () => {
    const { world, config } = await newWorld("at-once", { sync: true });
    await trainRun(onRealWeights(world, config));
    expectSame(await weightsOf(world));
    const steps = world.events.filter((event) => event.event === "step");
    expect(steps.map(({ metrics }) => [metrics["staleness_max"], metrics["rollouts"]])).toEqual(
      Array.from({ length: STEPS }, () => [0, GROUPS * GROUP_SIZE]),
    );
  });

  it.each([1, 2])("comes to them in whatever order rollouts end and are told of (order %i)", async (seed) => {
    const { world, config } = await newWorld(`disorder-${seed}`, { maxStaleness: 0 });
    const random = Random.seeded(seed);
    const shuffled = <T>(items: readonly T[]): T[] =>
      items
        .map((item) => ({ item, key: random.next() }))
        .toSorted((a, b) => a.key - b.key)
        .map(({ item }) => item);
    const ended = new Set<string>();
    world.statusOf = ({ id }) => (ended.has(id) ? "finished" : "queued");
    const deps = onRealWeights(world, config);
    const order: string[] = [];
    await trainRun({
      ...deps,
      // One rollout ends at a time, any of those under way.
      pause: async (ms) => {
        const [next] = shuffled([...world.rollouts.keys()].filter((id) => !ended.has(id)));
        if (next !== undefined) order.push(next);
        if (next !== undefined) ended.add(next);
        await deps.pause(ms);
      },
      records: { ...deps.records, batchRollouts: async (id) => shuffled(await deps.records.batchRollouts(id)) },
    });
    expect(order).toHaveLength(STEPS * GROUPS * GROUP_SIZE);
    expect(order).not.toEqual(order.toSorted());
    expectSame(await weightsOf(world));
  });
});
