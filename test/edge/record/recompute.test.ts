import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Evaluator } from "#shared/agent-settings.ts";
import { newId } from "#shared/ids.ts";
import { packFloats, packIds } from "#shared/packed.ts";
import { claimGroups, markTrained } from "#shared/store/batches.ts";
import { recordCall } from "#shared/store/calls.ts";
import { readRevisions } from "#shared/store/reward-revisions.ts";
import { readRewards, recordRewards } from "#shared/store/rewards.ts";
import { createRollouts, leaseRollouts, readRollout, type Rollout } from "#shared/store/rollouts.ts";
import { transact } from "#shared/store/statement.ts";
import { createTasks } from "#shared/store/tasks.ts";
import type { Judge } from "#shared/tables.ts";
import { recomputeInputSchema, type Recomputed } from "#shared/wire-feedback.ts";
import { airReward, airRewards } from "../../../edge/record/air.ts";
import { finishRollout } from "../../../edge/record/finish.ts";
import { recomputePage, type RecomputeDeps } from "../../../edge/record/recompute.ts";
import type { RewardWeights } from "../../../edge/record/reward.ts";
import { startTestStore, type TestStore } from "../../support/store.ts";

const WEIGHTS = { tools: { memory: 0.3, search: 0.2 }, alpha: 0.5 };
const JUDGE: Judge = { answer_pattern: '"([A-Z0-9]+)"', format_pattern: ".*", expected: "SAS12" };

let store: TestStore;
let time = 1_000_000;
beforeAll(async () => {
  store = await startTestStore();
});
afterAll(() => store.stop());

const deps = (weights: RewardWeights, agent: string): RecomputeDeps => ({
  db: store.db,
  writer: store.writer,
  agents: { [agent]: weights },
  now: () => time++,
});

type Message = Readonly<Record<string, unknown>>;
const call = (id: string, name: string): Message => ({
  role: "assistant",
  content: null,
  tool_calls: [{ id, type: "function", function: { name, arguments: "{}" } }],
});
const answer = (id: string, content: string): Message => ({ role: "tool", tool_call_id: id, content });

interface Given {
  readonly agent: string;
  /** Of each call: what its request showed, and what it answered. */
  readonly turns?: readonly { readonly messages: readonly Message[]; readonly response: Message }[];
  readonly judge?: Judge | null;
  readonly result?: string | null;
  readonly runId?: string;
  readonly groupId?: string;
  readonly reward?: number;
  readonly weights?: RewardWeights;
  readonly evaluators?: RecomputeDeps["evaluators"];
}

/** A rollout that ran and was finished under the weights, as the edge does it. */
async function finished(given: Given): Promise<string> {
  const { agent, turns = [], judge = JUDGE, result = 'Booked "SAS12".', runId, groupId, weights = WEIGHTS } = given;
  const id = newId("rollout");
  const taskId = newId("task");
  await store.writer.append([
    createTasks([{ tenantId: "default", id: taskId, agent, split: "train", input: {}, judge, createdAt: 1 }]),
    createRollouts(
      [
        {
          id,
          tenantId: "default",
          agent,
          mode: "train",
          maxAttempts: 1,
          taskId,
          ...(runId === undefined ? {} : { runId }),
          ...(groupId === undefined ? {} : { groupId }),
        },
      ],
      time++,
    ),
  ]);
  await transact(store.writer, leaseRollouts({ agent, limit: 9, now: time, leaseMs: 1000 }));
  for (const { messages, response } of [...turns, { messages: [], response: { role: "assistant", content: "x" } }]) {
    const air = airRewards(messages, { ...weights, tenantId: "default", rolloutId: id, attempt: 1, now: time });
    await store.writer.append([
      recordCall({
        id: newId("call"),
        tenantId: "default",
        rolloutId: id,
        attempt: 1,
        mode: "train",
        dialect: "chat",
        modelAsked: "m",
        request: JSON.stringify({ model: "m", messages: [{ role: "user", content: "Book." }, ...messages] }),
        response: JSON.stringify(response),
        promptTokenIds: packIds([1]),
        responseTokenIds: packIds([2]),
        behaviourLogprobs: packFloats([-0.5]),
        httpStatus: 200,
        trainable: true,
        latencyMs: 1,
        createdAt: time++,
      }),
      recordRewards(air),
    ]);
  }
  await finishRollout(
    {
      db: store.db,
      writer: store.writer,
      agents: { [agent]: weights },
      ...(given.evaluators === undefined ? {} : { evaluators: given.evaluators }),
      now: () => time++,
      random: () => 0.5,
    },
    { tenantId: "default", rolloutId: id, result, error: null, reward: given.reward ?? null },
  );
  return id;
}

const TURNS: Given["turns"] = [
  { messages: [], response: call("c1", "memory") },
  { messages: [call("c1", "memory"), answer("c1", "[]")], response: call("c2", "search") },
  {
    messages: [call("c1", "memory"), answer("c1", "[]"), call("c2", "search"), answer("c2", '{"error": "none"}')],
    response: { role: "assistant", content: "ok" },
  },
];

async function recompute(agent: string, weights: RewardWeights, request: object = {}): Promise<Recomputed> {
  return recomputePage(deps(weights, agent), "default", recomputeInputSchema.parse({ agent, ...request }));
}

const rollout = (id: string): Promise<Rollout | undefined> => readRollout(store.db, "default", id);

describe("recomputePage", () => {
  it("changes nothing where nothing changed", async () => {
    const agent = "same";
    const id = await finished({ agent, turns: TURNS });
    const before = await readRewards(store.db, "default", [id]);
    // memory +1, search −1: (0.3 − 0.2)/0.5 = 0.2; r = 0.5·0.2 + 0.5·1
    expect((await rollout(id))?.reward).toBeCloseTo(0.6, 12);
    expect(await recompute(agent, WEIGHTS)).toMatchObject({ scanned: 1, changed: 0, failures: 0, nextAfter: null });
    expect(await readRewards(store.db, "default", [id])).toEqual(before);
    expect(await readRevisions(store.db, "default", id)).toEqual([]);
  });

  it("reads AIR signals from the stored requests under other rules and weights, and keeps the old rewards", async () => {
    const agent = "rules";
    const id = await finished({ agent, turns: TURNS });
    const settings = {
      tools: { memory: { weight: 0.4, success: { empty_is_error: true } }, calendar: 0.1 },
      alpha: 0.25,
      correctness_share: 0.5,
    };
    const done = await recompute(agent, WEIGHTS, { settings });
    // memory −1, calendar never called, search has no weight: −0.4/0.5 = −0.8; r = 0.25·(−0.8) + 0.75·1
    expect(done).toMatchObject({ changed: 1, before: { rewarded: 1 }, after: { rewarded: 1 } });
    expect(done.before.sum).toBeCloseTo(0.6, 9);
    expect(done.after.sum).toBeCloseTo(0.55, 9);
    expect((await rollout(id))?.reward).toBeCloseTo(0.55, 9);
    expect((await rollout(id))?.outcome?.status).toBeCloseTo(-0.8, 9);
    const rows = await readRewards(store.db, "default", [id]);
    expect(rows.map(({ key, name, value }) => [key, name, value])).toEqual([
      [`air:${id}:1:c1`, "memory", -0.4],
      [`terminal:${id}:1`, "judge", 1],
    ]);
    const [revision] = await readRevisions(store.db, "default", id);
    expect(revision).toMatchObject({ revision: 1, outcome: { correctness: 1 } });
    expect(revision?.reward).toBeCloseTo(0.6, 9);
    expect(revision?.rewards).toMatchObject([
      { key: `air:${id}:1:c1`, value: 0.3, source: "air" },
      { key: `air:${id}:1:c2`, value: -0.2 },
      { source: "terminal", value: 1 },
    ]);
    expect(await recompute(agent, WEIGHTS, { settings })).toMatchObject({ changed: 0 });
    // And back again, which is one more revision.
    expect(await recompute(agent, WEIGHTS)).toMatchObject({ changed: 1 });
    expect((await rollout(id))?.reward).toBeCloseTo(0.6, 9);
    expect((await readRevisions(store.db, "default", id)).map((each) => each.revision)).toEqual([1, 2]);
  });

  it("keeps what a span or an event told of a tool call, under the new weights", async () => {
    const agent = "told";
    const id = await finished({ agent, turns: TURNS.slice(0, 1), weights: { tools: {}, alpha: 0.5 } });
    const options = { ...WEIGHTS, tenantId: "default", rolloutId: id, attempt: 1, now: time++ };
    const told = airReward({ toolCallId: "c9", tool: "memory", succeeded: false }, options, "span");
    await store.writer.append([recordRewards(told === undefined ? [] : [told])]);
    await recompute(agent, { tools: { memory: 0.6 }, alpha: 1 });
    expect(await rollout(id)).toMatchObject({ reward: -1 });
    const rows = await readRewards(store.db, "default", [id]);
    expect(rows.find((row) => row.source === "air")).toMatchObject({
      name: "memory",
      value: -0.6,
      detail: { tool_call_id: "c9", succeeded: false, seen: "span" },
    });
  });

  it("judges by another evaluator against what the task expects, and blends feedback in", async () => {
    const agent = "judged";
    const id = await finished({ agent, result: "take SAS12", judge: JUDGE });
    const evaluator = { type: "token_f1" };
    const none = { tools: {}, alpha: 0 };
    await recompute(agent, none, { settings: { evaluator } });
    // {take, sas12} against {sas12}: 2/3; terminal = 0.9·2/3 + 0.1
    expect((await rollout(id))?.reward).toBeCloseTo(0.7, 9);
    await store.writer.append([
      recordRewards([
        {
          id: newId("reward"),
          tenantId: "default",
          key: `feedback:${id}`,
          rolloutId: id,
          attempt: 1,
          source: "feedback",
          name: "thumbs",
          value: -1,
          createdAt: time++,
        },
      ]),
    ]);
    await recompute(agent, none, { settings: { evaluator } });
    expect((await rollout(id))?.reward).toBeCloseTo((0.7 - 1) / 2, 9);
    const terminal = (await readRewards(store.db, "default", [id])).find((row) => row.source === "terminal");
    expect(terminal?.value).toBeCloseTo(0.7, 9);
  });

  it("lets a reward that was given stand", async () => {
    const agent = "given";
    const id = await finished({ agent, reward: 0.5, weights: { tools: {}, alpha: 0 } });
    expect(await recompute(agent, { tools: {}, alpha: 0 })).toMatchObject({ changed: 0 });
    await recompute(agent, { tools: {}, alpha: 0 }, { settings: { evaluator: { type: "exact_match" } } });
    expect(await rollout(id)).toMatchObject({ reward: 0.5 });
  });

  it("frees what had no reward because its judge failed", async () => {
    const agent = "freed";
    const judge: Judge = { type: "worker", binding: "EVAL", expected: null };
    const broken = { service: () => () => Promise.resolve(new Response("", { status: 500 })) };
    const id = await finished({ agent, judge, evaluators: broken, weights: { tools: {}, alpha: 0 } });
    expect(await rollout(id)).toMatchObject({ reward: null, disposition: "dropped", dropReason: "no_reward" });
    const input = recomputeInputSchema.parse({ agent });
    const still = await recomputePage({ ...deps(WEIGHTS, agent), evaluators: broken }, "default", input);
    expect(still).toMatchObject({ changed: 0, failures: 1, failed: [{ rollout_id: id }] });
    expect((await rollout(id))?.error).toMatch(/status 500/);
    const well = { service: () => () => Promise.resolve(Response.json({ score: 1 })) };
    await recomputePage({ ...deps({ tools: {}, alpha: 0 }, agent), evaluators: well }, "default", input);
    expect(await rollout(id)).toMatchObject({ reward: 1, disposition: null, dropReason: null, error: null });
  });

  it("asks an evaluator again only where it is another one", async () => {
    const agent = "asked";
    let asked = 0;
    const evaluators = {
      service: () => () => {
        asked += 1;
        return Promise.resolve(Response.json({ score: 0.5 }));
      },
    };
    const evaluator: Evaluator = { type: "worker", binding: "EVAL" };
    const weights = { tools: { memory: 0.5 }, alpha: 0.5, evaluator };
    const id = await finished({ agent, judge: null, weights, evaluators });
    expect(asked).toBe(1);
    const all = { ...deps({ ...weights, alpha: 0.1 }, agent), evaluators };
    const page = await recomputePage(all, "default", recomputeInputSchema.parse({ agent }));
    expect(page).toMatchObject({ changed: 1 });
    expect(asked).toBe(1);
    // terminal = 0.9·0.5 + 0.1 = 0.55; status 0
    expect((await rollout(id))?.reward).toBeCloseTo(0.9 * 0.55, 9);
    await recomputePage(all, "default", recomputeInputSchema.parse({ agent, settings: { evaluator } }));
    expect(asked).toBe(2);
  });

  it("goes page by page, oldest first, and a dry run changes nothing", async () => {
    const agent = "paged";
    const ids: string[] = [];
    for (let at = 0; at < 5; at++) ids.push(await finished({ agent, turns: TURNS }));
    const other = { tools: { memory: 1 }, alpha: 1 };
    const dry = await recompute(agent, other, { dry_run: true });
    expect(dry).toMatchObject({ scanned: 5, changed: 5, after: { sum: 5 } });
    expect((await rollout(ids[0] ?? ""))?.reward).toBeCloseTo(0.6, 9);
    const scanned: number[] = [];
    let after: string | null = null;
    do {
      const page: Recomputed = await recompute(agent, other, { limit: 2, ...(after === null ? {} : { after }) });
      scanned.push(page.scanned);
      after = page.nextAfter;
    } while (after !== null);
    expect(scanned).toEqual([2, 2, 1]);
    for (const id of ids) expect((await rollout(id))?.reward).toBe(1);
    const [first = ""] = ids;
    expect(await recompute(agent, WEIGHTS, { rollout_ids: [first] })).toMatchObject({ scanned: 1, changed: 1 });
    const since = (await rollout(ids[3] ?? ""))?.createdAt ?? 0;
    expect(await recompute(agent, WEIGHTS, { since })).toMatchObject({ scanned: 2, changed: 2 });
    await expect(recompute(agent, WEIGHTS, { after: "nonsense" })).rejects.toMatchObject({
      code: "ERR_INVALID_REQUEST",
    });
  });

  it("leaves what a batch has alone, unless trained rollouts are wanted too; they stay trained", async () => {
    const agent = "trained";
    const runId = newId("run");
    const groupId = newId("group");
    const ids = [await finished({ agent, runId, groupId }), await finished({ agent, runId, groupId })];
    const batchId = newId("batch");
    await transact(
      store.writer,
      claimGroups({ tenantId: "default", batchId, runId, policy: agent, step: 1, groups: 1 }, time++),
    );
    const other = { tools: { memory: 1 }, alpha: 1 };
    const included = { run_id: runId, include_trained: true };
    expect(await recompute(agent, other, included)).toMatchObject({ scanned: 2, skipped: 2, changed: 0 });
    const version = { version: 1, parentVersion: 0, kind: "adapter", artifact: "a", sha256: "s", metrics: {} } as const;
    await transact(store.writer, markTrained({ tenantId: "default", batchId, ...version }, time++));
    expect(await recompute(agent, other, { run_id: runId })).toMatchObject({ skipped: 2, changed: 0 });
    expect(await recompute(agent, other, included)).toMatchObject({ skipped: 0, changed: 2 });
    for (const id of ids) expect(await rollout(id)).toMatchObject({ reward: 0, disposition: "trained" });
  });

  it("sees nothing of another tenant's", async () => {
    const id = await finished({ agent: "walls" });
    const input = recomputeInputSchema.parse({ rollout_ids: [id] });
    const page = await recomputePage(deps({ tools: {}, alpha: 0 }, "walls"), "other", input);
    expect(page).toMatchObject({ scanned: 0, changed: 0 });
  });
});
