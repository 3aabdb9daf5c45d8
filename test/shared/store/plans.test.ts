import type { Client } from "@libsql/client/web";
import { drizzle } from "drizzle-orm/libsql/web";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import * as agents from "#shared/store/agents.ts";
import { listAudit } from "#shared/store/audit.ts";
import * as batches from "#shared/store/batches.ts";
import { readCalls } from "#shared/store/calls.ts";
import { storeClient, type StoreDb } from "#shared/store/connect.ts";
import * as keys from "#shared/store/keys.ts";
import { countFreeLive } from "#shared/store/live-groups.ts";
import * as policies from "#shared/store/policies.ts";
import { deleteProvider, listProviders } from "#shared/store/providers.ts";
import { giveFeedback, readFeedbackTarget, readRolloutOfCall } from "#shared/store/feedback.ts";
import { readRewardByKey, readRewards } from "#shared/store/rewards.ts";
import * as revisions from "#shared/store/reward-revisions.ts";
import * as rollouts from "#shared/store/rollouts.ts";
import * as subjects from "#shared/store/subjects.ts";
import type { Statement } from "#shared/store/statement.ts";
import { isRevoked, rolloutJti } from "#shared/store/tokens.ts";
import { startTestStore, type TestStore } from "../../support/store.ts";

/**
 * Every query over the tables that grow with use goes by an index that leads to its rows: one that reads a table, or all
 * of a tenant, works in every test and wears out in production (Turso bills each row that is looked at).
 */
describe("query plans", () => {
  let store: TestStore;
  let client: Client;
  beforeAll(async () => {
    store = await startTestStore();
    client = storeClient({ url: store.url, token: store.keys.writeToken });
  });
  afterAll(() => store.stop());

  async function planOf(statement: Statement): Promise<string[]> {
    const { rows } = await client.execute({ sql: `explain query plan ${statement.sql}`, args: [...statement.args] });
    return rows.map((row) => (typeof row["detail"] === "string" ? row["detail"] : ""));
  }

  /** What a read asks, without its answer. */
  async function asked(read: (db: StoreDb) => Promise<unknown>): Promise<Statement[]> {
    const seen: Statement[] = [];
    const spy = new Proxy(client, {
      get: (target, name) =>
        name === "execute"
          ? (statement: Statement) => {
              seen.push({ sql: statement.sql, args: statement.args });
              return target.execute({ sql: statement.sql, args: [...statement.args] });
            }
          : Reflect.get(target, name),
    });
    await read(drizzle(spy));
    return seen;
  }

  const ref = { tenantId: "te", rolloutId: "ro", attempt: 1 };
  const reward = {
    ...ref,
    id: "re",
    key: "k",
    callId: null,
    source: "air",
    name: "memory",
    value: 1,
    createdAt: 1,
  } as const;
  const claim = { tenantId: "te", batchId: "ba", runId: "ru", policy: "flight", step: 0, groups: 3 };
  const trained = {
    tenantId: "te",
    batchId: "ba",
    version: 1,
    parentVersion: 0,
    kind: "adapter",
    artifact: "a",
    sha256: "s",
    metrics: {},
  } as const;
  const changes: Readonly<Record<string, readonly Statement[]>> = {
    lease: rollouts.leaseRollouts({ agent: "flight", limit: 3, now: 1, leaseMs: 1 }).statements,
    requeue: rollouts.requeueRollout(ref, { now: 1, notBefore: 1, error: "e", dropReason: "timeout" }),
    sweep: rollouts.sweepExpired(1).statements,
    extend: rollouts.extendLease(ref, 1),
    close: rollouts.closeRollout(ref, { now: 1, status: "finished" }),
    cancel: rollouts.cancelRollout("te", "ro", 1),
    drop: rollouts.dropRollouts("te", ["ro"], { reason: "stale", now: 1 }),
    openSession: rollouts.openSession(
      { id: "ro", tenantId: "te", agent: "flight", mode: "live", sessionId: "s" },
      { now: 1, leaseUntil: 2, subjectId: "alice" },
    ).statements,
    revokeKey: [keys.revokeKey("te", "k", 1)],
    mapModels: agents.mapModels({ tenantId: "te", name: "a", updatedAt: 1 }, { "*": "policy:p" }),
    deleteAgent: [agents.deleteAgent("te", "a")],
    deleteProvider: [deleteProvider("te", "p")],
    claim: batches.claimGroups(claim, 1).statements,
    claimLive: batches.claimGroups({ ...claim, live: { agent: "a", groupSize: 2, since: 1, versions: [1] } }, 1)
      .statements,
    trained: batches.markTrained(trained, 1).statements,
    retire: policies.retireVersions("te", "flight", { versions: [1, 2], now: 1 }).statements,
    abandon: batches.abandonBatch("te", "ba", { reason: "stale" }).statements,
    feedback: giveFeedback({ ...reward, source: "feedback" }, ref).statements,
    replaceRewards: revisions.replaceRewards(
      { ...ref, was: null, reward: 1, outcome: null, rewards: [reward], trained: "left alone" },
      1,
    ),
    deleteContent: subjects.deleteContent("te", ["ro"], 1),
    forgetSubject: [subjects.forgetSubject("te", "alice")],
    deleteRollouts: subjects.deleteRollouts("te", ["ro"]),
  };

  it.each(Object.entries(changes))("%s reads no whole table", async (_name, statements) => {
    for (const statement of statements)
      expect({ ...statement, waste: wasteful(await planOf(statement)) }).toEqual({ ...statement, waste: [] });
  });

  const reads: Readonly<Record<string, (db: StoreDb) => Promise<unknown>>> = {
    readRollout: (db) => rollouts.readRollout(db, "te", "ro"),
    readRollouts: (db) => rollouts.readRollouts(db, "te", ["ro"]),
    listQueuedAgents: (db) => rollouts.listQueuedAgents(db, 1),
    listIdleSessions: (db) => rollouts.listIdleSessions(db, 1, 10),
    readStatuses: (db) => rollouts.readStatuses(db, "te", ["ro"]),
    findKey: (db) => keys.findKey(db, "k"),
    readKey: (db) => keys.readKey(db, "te", "k"),
    listKeys: (db) => keys.listKeys(db, "te"),
    listAgents: (db) => agents.listAgents(db, "te"),
    listProviders: (db) => listProviders(db, "te"),
    listAudit: (db) => listAudit(db, "te", { before: "au" }),
    isRevoked: (db) => isRevoked(db, "te", "jti", rolloutJti("ro")),
    countOfRun: (db) => rollouts.countRollouts(db, "te", { runId: "ru" }),
    readAttempts: (db) => rollouts.readAttempts(db, "te", ["ro"]),
    readCalls: (db) => readCalls(db, "te", ["ro"]),
    readRewards: (db) => readRewards(db, "te", ["ro"]),
    readRewardByKey: (db) => readRewardByKey(db, "te", "k"),
    readFeedbackTarget: (db) => readFeedbackTarget(db, "te", "ro"),
    readRolloutOfCall: (db) => readRolloutOfCall(db, "te", "ca"),
    recomputableOfRun: (db) => revisions.listRecomputable(db, "te", { limit: 9, runId: "ru" }),
    recomputableById: (db) => revisions.listRecomputable(db, "te", { limit: 9, rolloutIds: ["ro"] }),
    readReplaceable: (db) => revisions.readReplaceable(db, "te", ["ro"]),
    readToolTraffic: (db) => revisions.readToolTraffic(db, ref),
    readRevisions: (db) => revisions.readRevisions(db, "te", "ro"),
    readSubject: (db) => subjects.readSubject(db, "te", "alice"),
    readBatch: (db) => batches.readBatch(db, "te", "ba"),
    readClaimedBatch: (db) => batches.readClaimedBatch(db, "te", "ru"),
    readBatchOfRollout: (db) => batches.readBatchOfRollout(db, "te", "ro"),
    readBatchRollouts: (db) => batches.readBatchRollouts(db, "te", "ba"),
    countFreeLive: (db) => countFreeLive(db, { tenantId: "te", policy: "p" }, { agent: "a", since: 1, versions: [1] }),
  };

  it.each(Object.entries(reads))("%s reads no whole table", async (_name, read) => {
    const statements = await asked(read);
    expect(statements.length).toBeGreaterThan(0);
    for (const statement of statements)
      expect({ ...statement, waste: wasteful(await planOf(statement)) }).toEqual({ ...statement, waste: [] });
  });

  it("pages through a tenant's rollouts in index order, without sorting them", async () => {
    const [list] = await asked((db) => rollouts.listRollouts(db, "te", { after: "ro" }));
    const plan = await planOf(list ?? { sql: "select 1", args: [] });
    expect(plan.join("; ")).toMatch(/rollouts_tenant_created/);
    expect(plan.join("; ")).not.toMatch(/TEMP B-TREE/);
  });
});

/** Steps of a plan that scan a table, or go through all of a tenant's rows of one. */
function wasteful(plan: readonly string[]): string[] {
  return plan.filter(
    (step) =>
      (step.startsWith("SCAN ") && !/json_each|CONSTANT ROW|\(subquery/.test(step)) ||
      /(rollouts_tenant_created|rewards_key) \(tenant_id=\?\)$/.test(step),
  );
}
