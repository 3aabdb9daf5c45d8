import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { readAttempts, readRollouts } from "#shared/store/rollouts.ts";
import { readCalls } from "#shared/store/calls.ts";
import { startTestEdge, type TestEdge } from "../../support/edge.ts";
import { until } from "../../support/until.ts";

/** The dispatcher in workerd: queue, Durable Object, service binding, real store; the agent is an obedient one. */

const CONCURRENCY = 5;
const JUDGE = { answer_pattern: "(at once)", format_pattern: "at once: \\d+", expected: "at once" };

let edge: TestEdge;
beforeAll(async () => {
  const agent = { policy: "flight", concurrency: CONCURRENCY, max_attempts: 2 };
  const entry = join(import.meta.dirname, "obedient-agent.ts");
  edge = await startTestEdge({
    agents: {
      patient: { ...agent, binding: "AGENT_PATIENT", timeout_ms: 60_000 },
      hasty: { ...agent, binding: "AGENT_HASTY", timeout_ms: 1000 },
    },
    agentEntries: { patient: entry, hasty: entry },
  });
});
afterAll(() => edge.stop());

interface Behaviour {
  readonly behave: "answer" | "crash" | "hang" | "overloaded" | "refused";
  readonly ms?: number;
}

/** Creates one rollout per behaviour, by way of the queue. */
async function start(behaviours: readonly Behaviour[], agent: "patient" | "hasty" = "patient"): Promise<string[]> {
  const tasks = behaviours.map((input) => ({
    id: newId("task"),
    agent,
    split: "train" as const,
    input: { ...input },
    judge: JUDGE,
  }));
  await edge.admin.createTasks(tasks);
  const rollouts = tasks.map((task) => ({
    id: newId("rollout"),
    taskId: task.id,
    agent,
    mode: "train" as const,
    maxAttempts: 2,
  }));
  await edge.admin.createRollouts(rollouts);
  return rollouts.map(({ id }) => id);
}

const read = (ids: readonly string[]) => readRollouts(edge.store.db, "default", ids);
const attemptsOf = (ids: readonly string[]) => readAttempts(edge.store.db, "default", ids);

function untilEnded(ids: readonly string[]) {
  return until(
    "the end of all rollouts",
    async () => {
      const rollouts = await read(ids);
      return rollouts.every(({ status }) => status !== "queued" && status !== "running") && rollouts;
    },
    28_000,
  );
}

describe("Dispatcher", () => {
  it("runs what the queue wakes it for, never more at a time than allowed, each with a token of its own", async () => {
    const ids = await start(Array.from({ length: 23 }, () => ({ behave: "answer", ms: 20 })));
    const ended = await untilEnded(ids);
    expect(ended.map(({ status, reward, dropReason, attempt }) => ({ status, reward, dropReason, attempt }))).toEqual(
      ids.map(() => ({ status: "finished", reward: 1, dropReason: null, attempt: 1 })),
    );
    const atOnce = ended.map(({ result }) => Number(/\d+/.exec(result ?? "")?.[0]));
    expect(Math.max(...atOnce)).toBe(CONCURRENCY);
    const calls = await readCalls(edge.store.db, "default", ids);
    expect(calls.map(({ rolloutId, trainable }) => ({ rolloutId, trainable }))).toEqual(
      ids.toSorted().map((rolloutId) => ({ rolloutId, trainable: true })),
    );
  });

  it("runs a rollout once though it is created and announced again and again", async () => {
    const taskId = newId("task");
    await edge.admin.createTasks([
      { id: taskId, agent: "patient", split: "train", input: { behave: "answer", ms: 50 }, judge: JUDGE },
    ]);
    const rollout = { id: newId("rollout"), taskId, agent: "patient", mode: "train" as const };
    await Promise.all(Array.from({ length: 8 }, () => edge.admin.createRollouts([rollout])));
    await untilEnded([rollout.id]);
    await edge.admin.createRollouts([rollout]);
    expect(await attemptsOf([rollout.id])).toMatchObject([{ attempt: 1, status: "finished" }]);
    expect(await readCalls(edge.store.db, "default", [rollout.id])).toHaveLength(1);
  });

  it("retries what broke and drops it with its reason, without harm to the others", async () => {
    edge.inference.answer = ({ messages }) => {
      const said = JSON.stringify(messages);
      if (said.includes("overloaded")) return { status: 500, error: "out of memory" };
      return said.includes("refused") ? { status: 400, error: "no" } : { tokens: ["ok"] };
    };
    const [hung = ""] = await start([{ behave: "hang" }], "hasty");
    const rest = await start((["crash", "overloaded", "refused", "answer"] as const).map((behave) => ({ behave })));
    const ids = [hung, ...rest];
    const ended = await untilEnded(ids);
    const byId = new Map(ended.map((rollout) => [rollout.id, rollout]));
    expect(
      ids.map((id) => {
        const { status, dropReason, reward, attempt } = byId.get(id) ?? {};
        return { status, dropReason, reward, attempt };
      }),
    ).toEqual([
      { status: "failed", dropReason: "timeout", reward: null, attempt: 2 },
      { status: "failed", dropReason: "agent_failed", reward: null, attempt: 2 },
      { status: "failed", dropReason: "upstream_failed", reward: null, attempt: 2 },
      { status: "failed", dropReason: "agent_failed", reward: null, attempt: 2 },
      { status: "finished", dropReason: null, reward: 1, attempt: 1 },
    ]);
    expect(byId.get(rest[0] ?? "")?.error).toMatch(/the agent crashed/);
    expect((await attemptsOf([hung])).map(({ status }) => status)).toEqual(["timeout", "timeout"]);
    edge.inference.answer = () => ({ tokens: ["ok"] });
  });

  it("leaves a rollout cancelled that is cancelled while its agent runs", async () => {
    const [id = ""] = await start([{ behave: "answer", ms: 400 }]);
    await until("the attempt's start", async () => (await read([id]))[0]?.status === "running");
    await edge.admin.cancelRollout(id);
    const [other = ""] = await start([{ behave: "answer", ms: 600 }]);
    await untilEnded([other]);
    expect((await read([id]))[0]).toMatchObject({
      status: "cancelled",
      result: null,
      reward: null,
      dropReason: "cancelled",
    });
  });

  it("queues again after a restart what ran before it", async () => {
    const ids = await start(Array.from({ length: 8 }, () => ({ behave: "answer", ms: 1000 })));
    await until("the first attempts", async () => (await attemptsOf(ids)).length === CONCURRENCY);
    await edge.restart();
    const ended = await untilEnded(ids);
    expect(ended.map(({ status, reward }) => ({ status, reward }))).toEqual(
      ids.map(() => ({ status: "finished", reward: 1 })),
    );
    expect((await attemptsOf(ids)).filter(({ status }) => status === "running")).toEqual([]);
  });
});
