import { afterAll, beforeAll, describe, expect, it } from "vitest";
import {
  decide,
  finishRollout,
  retryDelayMs,
  settleAttempts,
  type Answered,
  type DecideOptions,
  type Ending,
  type FinishDeps,
} from "../../../edge/record/finish.ts";
import type { Judgement } from "../../../edge/record/judgement.ts";
import type { Evidence } from "../../../edge/record/evidence.ts";
import { airRewards } from "../../../edge/record/air.ts";
import { startTestStore, type TestStore } from "../../support/store.ts";
import { newId } from "#shared/ids.ts";
import { packFloats, packIds } from "#shared/packed.ts";
import { recordCall } from "#shared/store/calls.ts";
import { readRewards, recordRewards } from "#shared/store/rewards.ts";
import { createRollouts, leaseRollouts, readAttempts, readRollout, startSelfRollout } from "#shared/store/rollouts.ts";
import { transact } from "#shared/store/statement.ts";
import { createTasks } from "#shared/store/tasks.ts";
import type { Judge } from "#shared/tables.ts";
import type { Mode } from "#shared/words.ts";

const TOOLS = { memory: 0.3, search: 0.2 };
const AGENTS = { flight: { tools: TOOLS, alpha: 0.5 } };
const JUDGE = { answer_pattern: '"([A-Z0-9]+)"', format_pattern: 'Booked "[A-Z0-9]+"\\.', expected: "SAS12" };

describe("retryDelayMs", () => {
  it("grows from a second to half a minute, with jitter around it", () => {
    expect([1, 2, 3, 4].map((attempt) => retryDelayMs(attempt, () => 0.5))).toEqual([1000, 4000, 16_000, 30_000]);
    expect(retryDelayMs(10, () => 0.5)).toBe(30_000);
    expect(retryDelayMs(1, () => 0)).toBe(500);
    expect(retryDelayMs(1, () => 0.999)).toBe(1499);
  });
});

describe("decide", () => {
  const options: DecideOptions = {
    weights: AGENTS.flight,
    judgement: { type: "unjudged" },
    now: 5000,
    random: () => 0.5,
  };
  const answered: Ending = {
    tenantId: "default",
    rolloutId: "ro_1",
    attempt: 1,
    type: "answered",
    result: 'Booked "SAS12".',
    reward: null,
  };

  function evidence(change: { rollout?: Partial<Evidence["rollout"]> } & Partial<Omit<Evidence, "rollout">>): Evidence {
    return {
      judge: change.judge ?? null,
      rewards: change.rewards ?? [],
      calls: change.calls ?? [],
      rollout: {
        id: "ro_1",
        tenantId: "default",
        runId: null,
        taskId: "ta_1",
        groupId: null,
        agent: "flight",
        mode: "train",
        pin: null,
        status: "running",
        attempt: 1,
        maxAttempts: 3,
        notBefore: 0,
        leaseUntil: 9000,
        result: null,
        error: null,
        reward: null,
        outcome: null,
        disposition: null,
        dropReason: null,
        sessionId: null,
        subjectId: null,
        keyId: null,
        createdAt: 0,
        startedAt: 0,
        finishedAt: null,
        ...change.rollout,
      },
    };
  }

  it("changes nothing where the attempt is not the running one", () => {
    for (const rollout of [
      { status: "finished" },
      { status: "cancelled" },
      { status: "queued" },
      { attempt: 2 },
      { tenantId: "other" },
    ] as const) {
      expect(decide(answered, evidence({ rollout }), options)).toEqual({
        settled: { status: "ended" },
        statements: [],
      });
    }
    expect(decide(answered, undefined, options).statements).toEqual([]);
  });

  it("queues a broken attempt again after a delay, until there are no attempts left", () => {
    const broken: Ending = { ...answered, type: "broken", error: "502", reason: "upstream_failed" };
    expect(decide(broken, evidence({}), options).settled).toEqual({ status: "queued", notBefore: 6000 });
    const last = { ...broken, attempt: 3 };
    expect(decide(last, evidence({ rollout: { attempt: 3 } }), options).settled).toEqual({ status: "failed" });
  });
});

describe("finishRollout", () => {
  let store: TestStore;
  let deps: FinishDeps;
  let time = 1_000_000;

  beforeAll(async () => {
    store = await startTestStore();
    deps = { db: store.db, writer: store.writer, agents: AGENTS, now: () => time++, random: () => 0.5 };
  });
  afterAll(() => store.stop());

  async function runningRollout(mode: Mode = "train", judge: Judge | null = JUDGE): Promise<string> {
    const id = newId("rollout");
    const taskId = newId("task");
    const row = { id, tenantId: "default", agent: "flight", mode, maxAttempts: 2, taskId };
    const split = mode === "val" ? "val" : "train";
    await store.writer.append([
      createTasks([{ tenantId: "default", id: taskId, agent: "flight", split, input: {}, judge, createdAt: 1 }]),
      createRollouts([row], time),
    ]);
    await lease();
    return id;
  }

  const lease = () =>
    transact(store.writer, leaseRollouts({ agent: "flight", limit: 10, now: time + 100_000, leaseMs: 1000 }));

  async function addCall(
    rolloutId: string,
    tools: readonly string[],
    change: { trainable?: boolean; attempt?: number; role?: string } = {},
  ) {
    const { trainable = true, attempt = 1, role = "main" } = change;
    const toolCalls = tools.map((name, index) => ({
      id: `${name}-${index}`,
      type: "function",
      function: { name, arguments: "{}" },
    }));
    await store.writer.append([
      recordCall({
        id: newId("call"),
        tenantId: "default",
        rolloutId,
        attempt,
        mode: "train",
        role,
        dialect: "chat",
        modelAsked: "gpt-4o-mini",
        request: "{}",
        response: JSON.stringify({ role: "assistant", content: null, tool_calls: toolCalls }),
        promptTokenIds: packIds([1]),
        responseTokenIds: packIds([2]),
        behaviourLogprobs: packFloats([-0.5]),
        httpStatus: 200,
        trainable,
        latencyMs: 1,
        createdAt: time++,
      }),
    ]);
  }

  async function addAir(rolloutId: string, attempt: number, results: readonly (readonly [string, string])[]) {
    const messages = results.flatMap(([tool, content], index) => [
      { role: "assistant", tool_calls: [{ id: `c${index}`, function: { name: tool, arguments: "{}" } }] },
      { role: "tool", tool_call_id: `c${index}`, content },
    ]);
    const found = airRewards(messages, { tenantId: "default", rolloutId, attempt, tools: TOOLS, now: time++ });
    await store.writer.append([recordRewards(found)]);
  }

  const request = (rolloutId: string) => ({
    tenantId: "default",
    rolloutId,
    result: 'Booked "SAS12".',
    error: null,
    reward: null,
  });

  it("joins status and terminal into the reward and keeps their parts", async () => {
    const id = await runningRollout();
    await addCall(id, ["search"]);
    await addCall(id, ["memory", "search"]);
    await addCall(id, []);
    await addAir(id, 1, [
      ["search", '{"error": "unknown city"}'],
      ["memory", "ok"],
      ["search", "[]"],
    ]);
    const finished = await finishRollout(deps, { ...request(id), result: 'Booked "KLM34".' });
    // status: memory +1, search (−1 +1)/2 = 0 → 0.3/0.5 = 0.6; terminal: 0.1; r = 0.5·0.6 + 0.5·0.1 = 0.35
    expect(finished).toMatchObject({
      status: "finished",
      disposition: null,
      result: 'Booked "KLM34".',
      outcome: { correctness: 0, format: 1, terminal: 0.1, tools: ["search", "memory", "search"] },
    });
    expect(finished.outcome?.status).toBeCloseTo(0.6, 12);
    expect(finished.reward).toBeCloseTo(0.35, 12);
    const rewards = await readRewards(store.db, "default", [id]);
    expect(rewards.filter((reward) => reward.source === "terminal")).toMatchObject([
      { key: `terminal:${id}:1`, name: "judge", value: 0.1, attempt: 1 },
    ]);
    expect(await readAttempts(store.db, "default", [id])).toMatchObject([{ attempt: 1, status: "finished" }]);
  });

  it("returns a rollout that has ended as it is", async () => {
    const id = await runningRollout();
    await addCall(id, []);
    const first = await finishRollout(deps, request(id));
    const again = await finishRollout(deps, { ...request(id), result: "something else", reward: -5 });
    expect(again).toEqual(first);
    expect(first.reward).toBe(0.5);
  });

  it("counts only what belongs to the running attempt", async () => {
    const id = await runningRollout();
    await addCall(id, ["memory"]);
    await addAir(id, 1, [["memory", "ok"]]);
    const queued = await finishRollout(deps, { ...request(id), result: null, error: "it broke" });
    expect(queued).toMatchObject({ status: "queued", error: "it broke", reward: null, disposition: null });
    await expect(finishRollout(deps, { ...request(id), attempt: 1 })).rejects.toMatchObject({ code: "ERR_CONFLICT" });
    await lease();
    await addCall(id, ["search"], { attempt: 2 });
    await expect(finishRollout(deps, { ...request(id), attempt: 1 })).rejects.toMatchObject({ code: "ERR_CONFLICT" });
    const finished = await finishRollout(deps, { ...request(id), attempt: 2 });
    expect(finished).toMatchObject({ status: "finished", attempt: 2, outcome: { status: 0, tools: ["search"] } });
  });

  it("fails a rollout whose last attempt broke, with a reason and without a reward", async () => {
    const id = await runningRollout();
    await finishRollout(deps, { ...request(id), error: "first" });
    await lease();
    const failed = await finishRollout(deps, { ...request(id), error: "second" });
    expect(failed).toMatchObject({
      status: "failed",
      error: "second",
      reward: null,
      disposition: "dropped",
      dropReason: "agent_failed",
    });
  });

  it("lets an explicit reward stand for the judge's", async () => {
    const asked = await runningRollout();
    await addCall(asked, []);
    expect(await finishRollout(deps, { ...request(asked), reward: 0.8 })).toMatchObject({
      reward: 0.4,
      outcome: { terminal: 0.8, correctness: 1, format: 1 },
    });
    const posted = await runningRollout("train", null);
    await addCall(posted, []);
    await store.writer.append([
      recordRewards([
        {
          id: newId("reward"),
          tenantId: "default",
          key: `explicit:${posted}`,
          rolloutId: posted,
          attempt: 1,
          source: "explicit",
          name: "score",
          value: 1,
          createdAt: time++,
        },
      ]),
    ]);
    expect(await finishRollout(deps, request(posted))).toMatchObject({ reward: 0.5, disposition: null });
  });

  it("drops what can never train, each with its reason", async () => {
    const silent = await runningRollout();
    expect(await finishRollout(deps, request(silent))).toMatchObject({
      status: "finished",
      disposition: "dropped",
      dropReason: "no_trainable_call",
    });
    const blind = await runningRollout();
    await addCall(blind, [], { trainable: false });
    expect(await finishRollout(deps, request(blind))).toMatchObject({ dropReason: "no_trainable_call" });
    const unjudged = await runningRollout("train", null);
    await addCall(unjudged, []);
    expect(await finishRollout(deps, request(unjudged))).toMatchObject({ reward: null, dropReason: "no_reward" });
    const evaluated = await runningRollout("val");
    await addCall(evaluated, []);
    expect(await finishRollout(deps, request(evaluated))).toMatchObject({ reward: 0.5, dropReason: "evaluation" });
  });

  it("finishes a rollout whose judge cannot judge, without a reward and with the reason", async () => {
    const id = await runningRollout("train", { ...JUDGE, answer_pattern: "(?=x)" });
    await addCall(id, []);
    const finished = await finishRollout(deps, request(id));
    expect(finished).toMatchObject({ status: "finished", reward: null, dropReason: "no_reward" });
    expect(finished.error).toMatch(/look-around/);
  });

  it("judges by the task's evaluator, or by its agent's against what the task expects", async () => {
    const own = await runningRollout("train", {
      type: "numeric",
      relative_tolerance: 0.01,
      absolute_tolerance: 0,
      expected: 12,
    });
    await addCall(own, []);
    // correct: 0.5·0 + 0.5·1
    expect(await finishRollout(deps, { ...request(own), result: "about 12.1" })).toMatchObject({
      reward: 0.5,
      outcome: { correctness: 1, format: 1, terminal: 1 },
    });
    const agents = { flight: { ...AGENTS.flight, correctnessShare: 0.6, evaluator: { type: "token_f1" } as const } };
    const expecting = await runningRollout("train", { expected: "the flight SAS12" });
    await addCall(expecting, []);
    // {flight, sas12} against {sas12}: F1 = 2/3; terminal = 0.6·2/3 + 0.4·1 = 0.8
    const judged = await finishRollout({ ...deps, agents }, { ...request(expecting), result: "SAS12" });
    expect(judged.outcome?.terminal).toBeCloseTo(0.8, 12);
    const nobody = await runningRollout("train", { expected: "SAS12" });
    await addCall(nobody, []);
    expect(await finishRollout(deps, request(nobody))).toMatchObject({
      reward: null,
      dropReason: "no_reward",
      error: expect.stringContaining("no evaluator"),
    });
  });

  it("asks a judge that is elsewhere, with what the rollout did", async () => {
    const asked: unknown[] = [];
    const service = () => (_url: unknown, init?: RequestInit) => {
      asked.push(JSON.parse(typeof init?.body === "string" ? init.body : ""));
      return Promise.resolve(Response.json({ score: 0.5, format: 1 }));
    };
    const id = await runningRollout("train", { type: "worker", binding: "EVAL", expected: "SAS12" });
    await addCall(id, ["search"]);
    const finished = await finishRollout({ ...deps, evaluators: { service } }, request(id));
    // terminal = 0.9·0.5 + 0.1·1 = 0.55
    expect(finished.outcome).toMatchObject({ correctness: 0.5, format: 1, tools: ["search"] });
    expect(finished.reward).toBeCloseTo(0.275, 12);
    expect(asked).toMatchObject([{ input: {}, result: 'Booked "SAS12".', expected: "SAS12", calls: [{}] }]);
    // A reward that is given needs nobody's opinion.
    const given = await runningRollout("train", { type: "worker", binding: "EVAL", expected: "SAS12" });
    await addCall(given, []);
    expect(await finishRollout({ ...deps, evaluators: { service } }, { ...request(given), reward: 1 })).toMatchObject({
      reward: 0.5,
    });
    expect(asked).toHaveLength(1);
  });

  it("settles the others while a judge is asked, and the judged one with its judgement", async () => {
    const answer = Promise.withResolvers<Response>();
    const evaluators = { service: () => () => answer.promise };
    const slow = await runningRollout("train", { type: "worker", binding: "EVAL", expected: null });
    const quick = await runningRollout();
    await addCall(slow, []);
    await addCall(quick, []);
    const ending = (rolloutId: string) =>
      ({
        tenantId: "default",
        rolloutId,
        attempt: 1,
        type: "answered",
        result: 'Booked "SAS12".',
        reward: null,
      }) as const;
    const later: { ending: Answered; judgement: Promise<Judgement> }[] = [];
    const judgeLater = (given: Answered, judgement: Promise<Judgement>) =>
      void later.push({ ending: given, judgement });
    const first = await settleAttempts({ ...deps, evaluators, judgeLater }, [ending(slow), ending(quick)]);
    expect(first.settled).toEqual([{ status: "judging" }, { status: "finished" }]);
    expect(await readRollout(store.db, "default", slow)).toMatchObject({ status: "running" });
    answer.resolve(Response.json({ score: 1 }));
    const judged = await Promise.all(later.map(async (each) => ({ ...each.ending, judgement: await each.judgement })));
    expect((await settleAttempts({ ...deps, evaluators, judgeLater }, judged)).settled).toEqual([
      { status: "finished" },
    ]);
    expect(await readRollout(store.db, "default", slow)).toMatchObject({ status: "finished", reward: 0.5 });
    expect(later).toHaveLength(1);
  });

  it("never tries a rollout again because its judge failed", async () => {
    const evaluators = { service: () => () => Promise.resolve(new Response("no", { status: 500 })) };
    const id = await runningRollout("train", { type: "worker", binding: "EVAL", expected: null });
    await addCall(id, []);
    const finished = await finishRollout({ ...deps, evaluators }, request(id));
    expect(finished).toMatchObject({ status: "finished", attempt: 1, reward: null, dropReason: "no_reward" });
    expect(finished.error).toMatch(/status 500/);
  });

  it("takes feedback for the reward only where nobody judges, and a judge's calls for none of the agent's", async () => {
    const feedback = (rolloutId: string, value: number) => ({
      id: newId("reward"),
      tenantId: "default",
      key: `feedback:${rolloutId}:${value}`,
      rolloutId,
      attempt: 1,
      source: "feedback" as const,
      name: "thumbs",
      value,
      createdAt: time++,
    });
    const unjudged = await runningRollout("train", null);
    await addCall(unjudged, []);
    await store.writer.append([recordRewards([feedback(unjudged, 1), feedback(unjudged, 0.5)])]);
    expect(await finishRollout(deps, request(unjudged))).toMatchObject({
      reward: 0.75,
      outcome: null,
      disposition: null,
    });
    const judged = await runningRollout();
    await addCall(judged, [], { role: "judge" });
    await store.writer.append([recordRewards([feedback(judged, -1)])]);
    expect(await finishRollout(deps, request(judged))).toMatchObject({
      reward: 0.5,
      dropReason: "no_trainable_call",
    });
  });

  it("finishes a rollout that its agent started by itself, and never retries it", async () => {
    const start = (id: string) =>
      store.writer.append([
        startSelfRollout({ id, tenantId: "default", agent: "unknown", mode: "live" }, time, time + 900_000),
      ]);
    const good = newId("rollout");
    await start(good);
    expect(await finishRollout(deps, { ...request(good), reward: 0.25 })).toMatchObject({
      status: "finished",
      reward: 0.25,
      disposition: null,
    });
    const bad = newId("rollout");
    await start(bad);
    expect(await finishRollout(deps, { ...request(bad), error: "no" })).toMatchObject({
      status: "failed",
      dropReason: "agent_failed",
    });
  });

  it("refuses a rollout of another tenant, and waits for records that are not in the store yet", async () => {
    const id = await runningRollout();
    await expect(finishRollout(deps, { ...request(id), tenantId: "other" })).rejects.toMatchObject({
      code: "ERR_NOT_FOUND",
    });
    const draining = {
      ...deps,
      writer: { ...store.writer, status: () => Promise.resolve({ storeUp: true, outbox: 3 }) },
    };
    await expect(finishRollout(draining, request(id))).rejects.toMatchObject({ code: "ERR_STORE" });
    expect((await finishRollout(deps, request(id))).status).toBe("finished");
  });
});
