import { join } from "node:path";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { setTimeout as pause } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { EdgeClient } from "#shared/client.ts";
import { newId } from "#shared/ids.ts";
import { connectStore, type StoreDb } from "#shared/store/connect.ts";
import { seedTask, startInstallation, type Installation } from "../../cli/installation.ts";
import { LOCAL_TASKS } from "../../cli/local-tasks.ts";
import { startReaper } from "../../cli/reaper.ts";
import { makeStateDir, stateDir } from "../../cli/state.ts";
import { createSupervisor, type Supervisor } from "../../cli/supervisor.ts";
import { freePortBase } from "../support/installation.ts";
import { newLedger, NOTHING_WRONG } from "../support/ledger.ts";
import { insist, startLoad, type Load } from "../support/load.ts";
import { descendantsOf } from "../support/processes.ts";
import { seeded, setting } from "../support/seed.ts";
import { until } from "../support/until.ts";

/**
 * Rounds (FULGUR_FAULT_ROUNDS) of kill -9 of a random part of an installation under load: LLM calls with rewards and spans,
 * rollouts of an agent, batches that are claimed, trained and dropped. The parts are the real ones under the real supervisor;
 * in the trainer's place is a client that only keeps its books, so that a round takes seconds (kill.test.ts has the trainer).
 */

const ROUNDS = setting("FULGUR_FAULT_ROUNDS", 50, { min: 1, max: 10_000 });
const PARTS = ["sqld ", "workerd serve", "edge-host", "inference/main"] as const;
/** Calls that must be answered after each kill before the next. */
const CALLS_A_ROUND = 6;
const BACK_WITHIN_MS = 30_000;

const { random, pick, below } = seeded("rounds");
const ledger = newLedger();
const over = new AbortController();
const task = LOCAL_TASKS["flight"];
if (task === undefined) throw new Error("there is no task flight");

let folder: string;
let supervisor: Supervisor;
let installation: Installation;
let db: StoreDb;
const loads: Load[] = [];
let trainer: Promise<void>;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "fulgur-rounds-"));
  const state = stateDir(folder);
  await makeStateDir(state);
  const base = await freePortBase();
  supervisor = createSupervisor({
    reaper: startReaper(),
    onEvent: () => undefined,
    // Parts are killed as soon as they run: the policy must not give them up, nor wait longer each time.
    restart: { quickLimit: Number.MAX_SAFE_INTEGER, firstDelayMs: 50, maxDelayMs: 50 },
  });
  installation = await startInstallation({
    state,
    ports: { edge: base, inference: base + 1, store: base + 2 },
    task,
    supervisor,
    onListening: () => undefined,
  });
  await seedTask(installation.client, { task, base: installation.base, valTasks: 1 });
  db = connectStore({ url: installation.urls.store, token: installation.keys.store.readToken, timeoutMs: 5000 });
  loads.push(liveCalls("live"));
  trainer = bookkeeping(installation.client);
}, 120_000);

afterAll(async () => {
  over.abort();
  await Promise.all(loads.map((load) => load.stop()));
  await trainer;
  await supervisor.stop();
  await rm(folder, { recursive: true, force: true, maxRetries: 5 });
}, 60_000);

test(
  `${ROUNDS} rounds of kill -9 lose nothing, store nothing twice and give no rollout two dispositions`,
  async () => {
    const startedAt = performance.now();
    const kills = new Map<string, number>();
    for (let round = 1; round <= ROUNDS; round++) {
      const answered = ledger.acknowledged.calls;
      await until(
        `round ${round}: calls are answered`,
        () => ledger.acknowledged.calls >= answered + CALLS_A_ROUND,
        BACK_WITHIN_MS,
      );
      await pause(random() * 200); // any moment of a call, not only its end
      // One in five rounds takes two parts at once.
      const victims = new Set([pick(PARTS), ...(below(5) === 0 ? [pick(PARTS)] : [])]);
      for (const part of victims) {
        const pid = await until(`round ${round}: ${part} runs`, () => pidOf(part), BACK_WITHIN_MS);
        process.kill(pid, "SIGKILL");
        kills.set(part.trim(), (kills.get(part.trim()) ?? 0) + 1);
      }
      await ledger.look(db).catch(() => undefined); // the store may be what was killed
    }
    const answered = ledger.acknowledged.calls;
    await until(
      "calls are answered after the last kill",
      () => ledger.acknowledged.calls >= answered + CALLS_A_ROUND,
      BACK_WITHIN_MS,
    );
    over.abort();
    await Promise.all(loads.map((load) => load.stop()));
    await trainer;
    await until("the outbox is empty", isDrained, 60_000);

    const audit = await ledger.audit(db);
    const { calls, rewards, spans, trained, finished } = ledger.acknowledged;
    console.log(
      `rounds: ${ROUNDS} in ${((performance.now() - startedAt) / 1000).toFixed(0)} s, killed ${[...kills].map(([part, times]) => `${part} ${times}`).join(", ")}; ` +
        `acknowledged ${calls} calls, ${rewards} rewards, ${spans} spans, ${finished} ends, ${trained} trained rollouts; ` +
        `lost ${audit.lost.length}, duplicated ${audit.duplicated.length}, two dispositions ${audit.twoDispositions.length}`,
    );
    expect(calls).toBeGreaterThanOrEqual(ROUNDS * CALLS_A_ROUND);
    expect(Math.min(rewards, spans, trained, finished)).toBeGreaterThan(0);
    expect(audit).toEqual(NOTHING_WRONG);
  },
  ROUNDS * 60_000 + 120_000,
);

/** Live clients; each answered call gets a reward and a span, sent until they are taken. */
function liveCalls(name: string): Load {
  const { client, urls } = installation;
  const token = async (): Promise<string> => {
    const grant = await client.createToken({
      agent: "flight",
      mode: "live",
      caps: { maxCalls: 40, maxTokens: 1_000_000 },
    });
    return grant.token;
  };
  const post = async (path: string, key: string, body: unknown): Promise<void> => {
    const response = await fetch(`${urls.edge}${path}`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${key}` },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(10_000),
    });
    await response.text();
    if (!response.ok) throw new Error(`${path} was answered with ${response.status}`);
  };
  return startLoad({
    ...{ ledger, name, token, mode: "live", url: () => urls.edge, paceMs: 30, clients: 3 },
    async afterCall(key, nonce) {
      const reward = async (): Promise<void> => {
        await post("/v1/rewards", key, { source: "feedback", name: nonce, value: 1 });
        ledger.reward(nonce);
      };
      const body = spanNamed(nonce);
      const span = async (): Promise<void> => {
        await post("/v1/traces", key, body);
        ledger.span(nonce);
      };
      await insist(reward, over.signal);
      await insist(span, over.signal);
    },
  });
}

/** What a trainer does to the store: rollouts in groups, claimed, and marked trained or dropped; each until it is taken. */
async function bookkeeping(client: EdgeClient): Promise<void> {
  const runId = newId("run");
  const again = <T>(ask: () => Promise<T>): Promise<T | undefined> => insist(ask, over.signal);
  await again(() => client.putRun({ id: runId, policy: "flight", agent: "flight", config: {} }));
  let created = 0;
  for (let step = 0; !over.signal.aborted; step++) {
    const batchId = newId("batch");
    let claimed: readonly string[] = [];
    while (claimed.length === 0 && !over.signal.aborted) {
      const open = await again(() => client.listRollouts({ run_id: runId, status: "running" }));
      const queued = await again(() => client.listRollouts({ run_id: runId, status: "queued" }));
      if ((open?.rollouts.length ?? 0) + (queued?.rollouts.length ?? 0) < 4) {
        const groupId = newId("group");
        const group = Array.from({ length: 2 }, () => ({
          ...{ id: newId("rollout"), taskId: task?.makeTask("train", created % 2048).id ?? "" },
          ...{ agent: "flight", mode: "train" as const, groupId, runId, maxAttempts: 3 },
        }));
        created++;
        await again(() => client.createRollouts(group));
        // A rollout that no agent runs but a client of its own, which ends it.
        await again(() => endedByItself(client));
      }
      const claim = await again(() => client.claimBatch({ batchId, runId, policy: "flight", step, groups: 1 }));
      claimed = claim?.rolloutIds ?? [];
      await pause(100);
    }
    if (over.signal.aborted) return;
    const [dropped, ...kept] = claimed;
    // One of a batch now and then is dropped after it was claimed; it must stay so.
    if (dropped !== undefined && below(3) === 0) await again(() => client.dropRollouts([dropped], "stale"));
    if (below(4) === 0) {
      await again(() => client.abandonBatch(batchId, "stale"));
      continue;
    }
    const version = step + 1;
    const done = await again(async () => {
      await client.markTrained(batchId, {
        ...{ version, parentVersion: version - 1, kind: "adapter", artifact: `none/${version}` },
        ...{ sha256: version.toString(16).padStart(64, "0"), metrics: {} },
      });
      return true;
    });
    if (done === true) ledger.trained(batchId, kept);
  }
}

async function endedByItself(client: EdgeClient): Promise<void> {
  const { rolloutId } = await client.createToken({ agent: "flight", mode: "train" });
  if (rolloutId === null) return;
  const end = await insist(() => client.finishRollout(rolloutId, { result: "done", reward: 0.5 }), over.signal);
  // As it was told: what counts is that it stays so.
  if (end !== undefined) ledger.finished(rolloutId, end.reward);
}

function spanNamed(name: string): unknown {
  const hex = (bytes: number): string => Buffer.from(crypto.getRandomValues(new Uint8Array(bytes))).toString("hex");
  const span = {
    ...{ traceId: hex(16), spanId: hex(8), name, kind: 1 },
    ...{ startTimeUnixNano: `${Date.now()}000000`, endTimeUnixNano: `${Date.now()}000000`, attributes: [] },
  };
  return { resourceSpans: [{ resource: { attributes: [] }, scopeSpans: [{ scope: {}, spans: [span] }] }] };
}

function pidOf(part: string): number | undefined {
  return descendantsOf(process.pid).find(({ command }) => command.includes(part))?.pid;
}

async function isDrained(): Promise<boolean> {
  const text = await fetch(`${installation.urls.edge}/metrics`).then(
    (response) => response.text(),
    () => "",
  );
  return /fulgur_store_up 1\n/.test(text) && /fulgur_outbox_units 0/.test(text);
}
