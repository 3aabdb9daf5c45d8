import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { Pump, TICK_MS, type PumpAgent, type PumpDeps } from "../../../edge/dispatch/pump.ts";
import type { AgentAnswer } from "../../../edge/dispatch/invoke.ts";
import { LEASE_MS } from "../../../edge/dispatch/sweep.ts";
import { startTestStore, type TestStore } from "../../support/store.ts";
import { FulgurError } from "#shared/errors.ts";
import { newId } from "#shared/ids.ts";
import {
  cancelRollout,
  createRollouts,
  openSession,
  readAttempts,
  readRollouts,
  startSelfRollout,
  type Rollout,
} from "#shared/store/rollouts.ts";
import { recordCall } from "#shared/store/calls.ts";
import { createTasks } from "#shared/store/tasks.ts";
import type { Statement } from "#shared/store/statement.ts";

/** The pump on a real store, with agents that do as they are told. */

const TENANT = "default";
const JUDGE = { answer_pattern: "(\\d+)", format_pattern: "\\d+", expected: "1" };
const RIGHT: AgentAnswer = { type: "answered", result: "1" };

let store: TestStore;
beforeAll(async () => {
  store = await startTestStore();
});
afterAll(() => store.stop());

type Invoke = PumpDeps["invoke"];

type Change = Partial<PumpAgent> & Partial<Pick<PumpDeps, "writer" | "evaluators">> & { readonly agent?: string };

function harness(invoke: Invoke, change: Change = {}) {
  const { writer = store.writer, agent = newId("run").slice(3), evaluators = {}, ...config } = change;
  const clock = { skewMs: 0 };
  const calledAt: number[] = [];
  const invoked: string[] = [];
  const active = { now: 0, most: 0 };
  const pump = new Pump({
    writer,
    connect: () => store.db,
    agents: {
      of: () => ({ [agent]: { tools: {}, alpha: 0.5, concurrency: 4, timeoutMs: 10_000, ...config } }),
      refresh: () => Promise.resolve(),
    },
    evaluators,
    now: () => Date.now() + clock.skewMs,
    random: () => 0.5,
    callAt: (time) => calledAt.push(time),
    invoke: async (rollout, input, signal) => {
      invoked.push(`${rollout.id}/${rollout.attempt}`);
      active.now++;
      active.most = Math.max(active.most, active.now);
      try {
        return await invoke(rollout, input, signal);
      } finally {
        active.now--;
      }
    },
  });
  return { pump, agent, clock, calledAt, invoked, active };
}

async function queue(agent: string, count: number, maxAttempts = 3): Promise<string[]> {
  const taskId = newId("task");
  const ids = Array.from({ length: count }, () => newId("rollout"));
  const rows = ids.map((id) => ({ id, tenantId: TENANT, agent, mode: "val" as const, maxAttempts, taskId }));
  await store.writer.append([
    createTasks([{ tenantId: TENANT, id: taskId, agent, split: "val", input: { n: 7 }, judge: JUDGE, createdAt: 1 }]),
    createRollouts(rows, Date.now()),
  ]);
  return ids;
}

const read = (ids: readonly string[]): Promise<Rollout[]> => readRollouts(store.db, TENANT, ids);

async function statuses(ids: readonly string[]): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  for (const { status } of await read(ids)) counts[status] = (counts[status] ?? 0) + 1;
  return counts;
}

const until = (ids: readonly string[], wanted: Record<string, number>): Promise<void> =>
  vi.waitFor(async () => expect(await statuses(ids)).toEqual(wanted), { timeout: 20_000, interval: 20 });

/** An agent that ends when it is told to, or when its signal is given. */
function held() {
  const releases: ((answer: AgentAnswer) => void)[] = [];
  const signals: AbortSignal[] = [];
  const invoke: Invoke = (_rollout, _input, signal) => {
    signals.push(signal);
    return new Promise((resolve) => releases.push(resolve));
  };
  return { invoke, releases, signals };
}

describe("Pump", () => {
  it("runs every queued rollout once, never more at a time than the agent's concurrency", async () => {
    const inputs: unknown[] = [];
    const { pump, agent, invoked, active } = harness(async (_rollout, input) => {
      inputs.push(input);
      await new Promise((resolve) => setImmediate(resolve));
      return RIGHT;
    });
    const ids = await queue(agent, 70);
    await pump.wake();
    await until(ids, { finished: 70 });
    expect(new Set(invoked)).toEqual(new Set(ids.map((id) => `${id}/1`)));
    expect(invoked).toHaveLength(70);
    expect(active.most).toBe(4);
    expect(inputs[0]).toEqual({ n: 7 });
    const [first] = await read(ids);
    expect(first).toMatchObject({
      result: "1",
      reward: 1,
      disposition: "dropped",
      dropReason: "evaluation",
      attempt: 1,
    });
  });

  it("runs a rollout once however often it is woken", async () => {
    const { pump, agent, invoked } = harness(() => Promise.resolve(RIGHT));
    const ids = await queue(agent, 5);
    await Promise.all(Array.from({ length: 20 }, () => pump.wake()));
    await until(ids, { finished: 5 });
    await pump.wake();
    expect(invoked).toHaveLength(5);
  });

  it("takes what is queued while it works, without being woken for it twice", async () => {
    const { invoke, releases } = held();
    const { pump, agent, invoked } = harness(invoke, { concurrency: 1 });
    const ids = await queue(agent, 3);
    await pump.wake();
    for (let done = 0; done < 3; done++) {
      await vi.waitFor(() => expect(invoked).toHaveLength(done + 1));
      releases[done]?.(RIGHT);
    }
    await until(ids, { finished: 3 });
  });

  it("retries a broken attempt after a delay and drops the rollout after the last", async () => {
    const { pump, agent, calledAt, clock, invoked } = harness(
      () => Promise.resolve({ type: "broken", error: "503 from upstream", reason: "upstream_failed" }),
      {},
    );
    const ids = await queue(agent, 2, 2);
    const before = Date.now();
    await pump.wake();
    await until(ids, { queued: 2 });
    const waiting = await read(ids);
    // A second at random() = 0.5; and the pump asked to be called then.
    for (const { notBefore, error } of waiting) {
      expect(error).toBe("503 from upstream");
      expect(notBefore).toBeGreaterThanOrEqual(before + 1000);
      expect(calledAt).toContain(notBefore);
    }
    expect(invoked).toHaveLength(2);
    await pump.wake();
    expect(invoked).toHaveLength(2);
    clock.skewMs = 60_000;
    await pump.tick();
    await until(ids, { failed: 2 });
    for (const rollout of await read(ids)) {
      expect(rollout).toMatchObject({
        reward: null,
        disposition: "dropped",
        dropReason: "upstream_failed",
        attempt: 2,
      });
    }
    const attempts = await readAttempts(store.db, TENANT, ids);
    expect(attempts.map(({ attempt, status }) => ({ attempt, status }))).toEqual(
      [1, 2, 1, 2].map((attempt) => ({ attempt, status: "failed" })),
    );
  });

  it("counts an agent that throws as broken", async () => {
    const { pump, agent } = harness(() => Promise.reject(new Error("boom")));
    const ids = await queue(agent, 1, 1);
    await pump.wake();
    await until(ids, { failed: 1 });
    expect((await read(ids))[0]).toMatchObject({ dropReason: "agent_failed", error: "boom" });
  });

  it("ends an attempt that takes too long, and tells the agent", async () => {
    const { invoke, signals } = held();
    const { pump, agent } = harness(invoke, { timeoutMs: 30 });
    const ids = await queue(agent, 1, 1);
    await pump.wake();
    await until(ids, { failed: 1 });
    expect((await read(ids))[0]).toMatchObject({ dropReason: "timeout", error: "the agent took longer than 30 ms" });
    expect((await readAttempts(store.db, TENANT, ids))[0]).toMatchObject({ status: "timeout" });
    expect(signals.map((signal) => signal.aborted)).toEqual([true]);
  });

  it("lets go of a rollout that was cancelled while it ran", async () => {
    const { invoke, releases, signals } = held();
    const { pump, agent, invoked, calledAt } = harness(invoke, { concurrency: 1 });
    const [cancelled = "", other = ""] = await queue(agent, 2);
    await pump.wake();
    await vi.waitFor(() => expect(invoked).toEqual([`${cancelled}/1`]));
    await store.writer.transact(cancelRollout(TENANT, cancelled, Date.now()));
    await pump.tick();
    await vi.waitFor(() => expect(invoked).toEqual([`${cancelled}/1`, `${other}/1`]));
    expect(signals[0]?.aborted).toBe(true);
    expect(Math.max(...calledAt)).toBeGreaterThanOrEqual(Date.now() + TICK_MS - 1000);
    for (const release of releases) release(RIGHT);
    await until([other], { finished: 1 });
    expect((await read([cancelled]))[0]).toMatchObject({ status: "cancelled", dropReason: "cancelled", result: null });
  });

  it("queues again what a dispatcher that is gone was running, and ignores that one's late answer", async () => {
    const { invoke, releases } = held();
    const gone = harness(invoke);
    const ids = await queue(gone.agent, 3);
    await gone.pump.wake();
    await vi.waitFor(() => expect(gone.invoked).toHaveLength(3));
    const next = harness(() => Promise.resolve(RIGHT), { agent: gone.agent });
    await next.pump.wake();
    await until(ids, { finished: 3 });
    expect(new Set(next.invoked)).toEqual(new Set(ids.map((id) => `${id}/2`)));
    for (const release of releases) release({ type: "answered", result: "999" });
    await vi.waitFor(() => expect(gone.pump.running.size).toBe(0));
    await gone.pump.tick();
    expect((await read(ids)).map((rollout) => rollout.result)).toEqual(["1", "1", "1"]);
  });

  it("keeps the leases of what it runs, and sweeps those that nobody keeps", async () => {
    const { invoke, releases } = held();
    const { pump, agent, clock, invoked } = harness(invoke);
    const ids = await queue(agent, 1);
    await pump.wake();
    await vi.waitFor(() => expect(invoked).toHaveLength(1));
    const self = newId("rollout");
    await store.writer.append([
      startSelfRollout({ id: self, tenantId: TENANT, agent, mode: "live" }, Date.now(), Date.now() + 1000),
    ]);
    clock.skewMs = LEASE_MS * 10;
    await pump.tick();
    const leaseUntil = (await read(ids))[0]?.leaseUntil ?? 0;
    expect(leaseUntil).toBeGreaterThan(Date.now() + LEASE_MS * 10);
    expect((await read([self]))[0]).toMatchObject({ status: "failed", dropReason: "timeout" });
    releases[0]?.(RIGHT);
    await until(ids, { finished: 1 });
    expect(invoked).toHaveLength(1);
  });

  it("keeps what ended while the store is away and settles it afterwards", async () => {
    let away = false;
    const guard = <T>(work: () => Promise<T>): Promise<T> =>
      away ? Promise.reject(new FulgurError("ERR_STORE", "the store is away")) : work();
    const { invoke, releases } = held();
    const { pump, agent, invoked, calledAt } = harness(invoke, {
      writer: {
        transact: (statements) => guard(() => store.writer.transact(statements)),
        status: () => guard(() => store.writer.status()),
      },
    });
    const ids = await queue(agent, 2);
    await pump.wake();
    await vi.waitFor(() => expect(invoked).toHaveLength(2));
    away = true;
    for (const release of releases) release(RIGHT);
    await vi.waitFor(() => expect(pump.running.size).toBe(0));
    await pump.tick();
    expect(calledAt.at(-1)).toBeLessThan(Date.now() + 2000);
    expect(await statuses(ids)).toEqual({ running: 2 });
    away = false;
    await pump.tick();
    await until(ids, { finished: 2 });
    expect(invoked).toHaveLength(2);
  });

  it("recovers leases whose transaction was committed without an answer", async () => {
    let lose = true;
    const { pump, agent, invoked } = harness(() => Promise.resolve(RIGHT), {
      writer: {
        status: () => store.writer.status(),
        transact: async (statements) => {
          const rows = await store.writer.transact(statements);
          if (lose && statements.some(({ sql }) => sql.includes("returning *"))) {
            lose = false;
            throw new FulgurError("ERR_STORE", "the answer was lost");
          }
          return rows;
        },
      },
    });
    const ids = await queue(agent, 3);
    await pump.wake();
    expect(await statuses(ids)).toEqual({ running: 3 });
    await pump.tick();
    await until(ids, { finished: 3 });
    expect(new Set(invoked)).toEqual(new Set(ids.map((id) => `${id}/2`)));
  });

  it("settles the others where the store refuses one ending, and fails that one", async () => {
    const poisoned = (statements: readonly Statement[]): boolean =>
      statements.some(({ args }) => args.includes("poison"));
    let victim: string | undefined;
    const { pump, agent } = harness(
      (rollout) => {
        victim ??= rollout.id;
        return Promise.resolve(rollout.id === victim ? { type: "answered", result: "poison" } : RIGHT);
      },
      {
        writer: {
          status: () => store.writer.status(),
          transact: (statements) =>
            poisoned(statements)
              ? Promise.reject(new FulgurError("ERR_CONFLICT", "value too large"))
              : store.writer.transact(statements),
        },
      },
    );
    const ids = await queue(agent, 6, 1);
    await pump.wake();
    await until(ids, { finished: 5, failed: 1 });
    expect((await read([victim ?? ""]))[0]).toMatchObject({
      status: "failed",
      error: "its ending could not be stored: value too large",
    });
  });

  it("brings every rollout to exactly one end, however its agent behaves", async () => {
    let draw = 1;
    const random = () => (draw = (draw * 48271) % 2147483647) / 2147483647;
    const { pump, agent, clock, active, invoked } = harness(
      async (_rollout, _input, signal) => {
        const luck = random();
        if (luck < 0.1) throw new Error("crash");
        if (luck < 0.2) return { type: "broken", error: "502", reason: "upstream_failed" };
        if (luck < 0.25) {
          return new Promise<AgentAnswer>((resolve) => {
            signal.addEventListener("abort", () => resolve(RIGHT), { once: true });
          });
        }
        await new Promise((resolve) => setTimeout(resolve, luck * 10));
        return { type: "answered", result: luck < 0.6 ? "1" : null };
      },
      { concurrency: 16, timeoutMs: 60 },
    );
    const ids = await queue(agent, 120);
    const cancelled = ids.slice(0, 3);
    await pump.wake();
    await store.writer.transact(cancelled.flatMap((id) => cancelRollout(TENANT, id, Date.now())));
    await vi.waitFor(
      async () => {
        clock.skewMs += 40_000;
        await pump.tick();
        const counts = await statuses(ids);
        expect(counts["queued"] ?? 0).toBe(0);
        expect(counts["running"] ?? 0).toBe(0);
      },
      { timeout: 20_000, interval: 30 },
    );
    const ended = await read(ids);
    expect(ended).toHaveLength(120);
    for (const { status, reward, dropReason, attempt } of ended) {
      // Only what an agent came to has a reward; a failure has none, not zero.
      expect(reward !== null).toBe(status === "finished");
      expect(dropReason).not.toBeNull();
      expect(attempt).toBeLessThanOrEqual(3);
    }
    expect(active.most).toBeLessThanOrEqual(16);
    expect(new Set(invoked).size).toBe(invoked.length);
    const attempts = await readAttempts(store.db, TENANT, ids);
    expect(attempts.filter(({ status }) => status === "running")).toEqual([]);
  });
});

describe("a judge that has to be asked", () => {
  it("holds up nobody else, and its rollout is settled with what it says", async () => {
    const asked = Promise.withResolvers<Response>();
    const { pump, agent } = harness(() => Promise.resolve({ type: "answered", result: "late" }), {
      evaluator: { type: "worker", url: "https://judge.example.com/" },
      evaluators: { fetch: () => asked.promise },
    });
    const quick = harness(() => Promise.resolve(RIGHT));
    const slow = newId("rollout");
    await store.writer.append([
      createRollouts([{ id: slow, tenantId: TENANT, agent, mode: "val", maxAttempts: 1 }], Date.now()),
    ]);
    const ids = await queue(quick.agent, 3);
    await Promise.all([pump.wake(), quick.pump.wake()]);
    await until(ids, { finished: 3 });
    await pump.tick();
    expect(await statuses([slow])).toEqual({ running: 1 });
    asked.resolve(Response.json({ score: 1, format: 0.5 }));
    await until([slow], { finished: 1 });
    const [rollout] = await read([slow]);
    expect(rollout).toMatchObject({ result: "late", error: null, reward: expect.closeTo(0.95, 10), attempt: 1 });
  });
});

describe("live sessions", () => {
  it("are finished with their last answer when they fall silent, and those that go on are not", async () => {
    const { pump, agent } = harness(() => Promise.resolve(RIGHT));
    const [silent, lively] = [newId("rollout"), newId("rollout")];
    const open = (id: string, leaseUntil: number): Statement[] =>
      openSession({ id, tenantId: TENANT, agent, mode: "live", sessionId: id }, { now: 1, leaseUntil, subjectId: null })
        .statements;
    const call = (n: number, content: unknown): Statement[] =>
      recordCall({
        id: newId("call"),
        tenantId: TENANT,
        rolloutId: silent,
        attempt: 1,
        mode: "live",
        role: "main",
        dialect: "chat",
        modelAsked: "m",
        request: "{}",
        response: JSON.stringify({ role: "assistant", content }),
        httpStatus: 200,
        trainable: true,
        latencyMs: 1,
        createdAt: n,
      });
    await store.writer.append([
      open(silent, Date.now() - 1),
      open(lively, Date.now() + 60_000),
      call(1, "first"),
      call(2, "last"),
    ]);
    await pump.tick();
    await until([silent], { finished: 1 });
    const [rollout] = await read([silent]);
    expect(rollout).toMatchObject({ status: "finished", result: "last", disposition: null, error: null });
    expect(await statuses([lively])).toEqual({ running: 1 });
  });
});
