import { sql } from "drizzle-orm";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { listAudit } from "#shared/store/audit.ts";
import { claimGroups, markTrained, readBatchRollouts } from "#shared/store/batches.ts";
import { readCalls, recordCall } from "#shared/store/calls.ts";
import { readRewards, recordRewards } from "#shared/store/rewards.ts";
import {
  closeRollout,
  createRollouts,
  leaseRollouts,
  readAttempts,
  readRollout,
  startSelfRollout,
} from "#shared/store/rollouts.ts";
import { transact } from "#shared/store/statement.ts";
import { putTenant } from "#shared/store/tenants.ts";
import type { Mode } from "#shared/words.ts";
import { sweepRetention } from "../../../edge/record/retention.ts";
import { deleteSubject } from "../../../edge/record/subjects.ts";
import { startTestStore, type TestStore } from "../../support/store.ts";

const BY = { tenantId: "default", jti: "j1" };
const DAY = 86_400_000;

let store: TestStore;
beforeAll(async () => {
  store = await startTestStore();
});
afterAll(() => store.stop());

interface Change {
  readonly subjectId?: string | null;
  readonly tenantId?: string;
  readonly createdAt?: number;
  readonly isOver?: boolean;
}

/** A live rollout with a call, a reward and an attempt. */
async function live(change: Change = {}): Promise<string> {
  const { subjectId = null, tenantId = "default", createdAt = 1000, isOver = true } = change;
  const id = newId("rollout");
  const ref = { tenantId, rolloutId: id, attempt: 1 };
  await store.writer.append([
    startSelfRollout({ id, tenantId, agent: "flight", mode: "live", subjectId, sessionId: "s" }, createdAt, 9e12),
    ...content(id, tenantId),
    ...(isOver ? [closeRollout(ref, { now: createdAt, status: "finished", result: "r", reward: 1 })] : []),
  ]);
  return id;
}

function content(id: string, tenantId = "default") {
  const ref = { tenantId, rolloutId: id, attempt: 1 };
  return [
    recordCall({
      ...ref,
      id: newId("call"),
      mode: "live",
      dialect: "chat",
      modelAsked: "m",
      request: '{"messages":[]}',
      response: null,
      httpStatus: 200,
      trainable: false,
      latencyMs: 1,
      createdAt: 1,
    }),
    recordRewards([
      { ...ref, id: newId("reward"), key: `k:${id}`, source: "feedback", name: "f", value: 1, createdAt: 1 },
    ]),
  ];
}

async function isEmpty(id: string, tenantId = "default"): Promise<boolean> {
  const [calls, rewards] = await Promise.all([
    readCalls(store.db, tenantId, [id]),
    readRewards(store.db, tenantId, [id]),
  ]);
  return calls.length === 0 && rewards.length === 0;
}

/** Two train rollouts of a subject in one claimed batch. */
async function claimed(subjectId: string): Promise<{ batchId: string; runId: string; ids: string[] }> {
  const runId = newId("run");
  const groupId = newId("group");
  const batchId = newId("batch");
  const ids = [newId("rollout"), newId("rollout")];
  const rows = ids.map((id) => ({
    id,
    tenantId: "default",
    agent: runId,
    mode: "train" as Mode,
    maxAttempts: 1,
    groupId,
    runId,
    subjectId,
  }));
  await store.writer.append([createRollouts(rows, 1)]);
  await transact(store.writer, leaseRollouts({ agent: runId, limit: 9, now: 10, leaseMs: 10 }));
  for (const rolloutId of ids) {
    const ref = { tenantId: "default", rolloutId, attempt: 1 };
    await store.writer.append([...content(rolloutId), closeRollout(ref, { now: 1, status: "finished", reward: 1 })]);
  }
  const claim = { tenantId: "default", batchId, runId, policy: runId.slice(3), step: 1, groups: 1 };
  expect(await transact(store.writer, claimGroups(claim, 1))).toHaveLength(2);
  return { batchId, runId, ids };
}

describe("deleteSubject", () => {
  it("deletes the content of all of a subject's rollouts, takes them out of training, and says what was learned", async () => {
    const open = await live({ subjectId: "alice" });
    const running = await live({ subjectId: "alice", isOver: false });
    const other = await live({ subjectId: "bob" });
    const foreign = await live({ subjectId: "alice", tenantId: "other" });
    const waiting = await claimed("alice");
    const done = await claimed("alice");
    const trained = { version: 1, parentVersion: 0, kind: "adapter", artifact: "a", sha256: "s", metrics: {} } as const;
    await transact(store.writer, markTrained({ tenantId: "default", batchId: done.batchId, ...trained }, 5));

    const deps = { db: store.db, writer: store.writer, now: 7000 };
    const said = await deleteSubject(deps, BY, "alice");
    expect(said).toEqual({
      subject: "alice",
      rollouts: 6,
      dropped: 4,
      claimed: [{ batch_id: waiting.batchId, run_id: waiting.runId, step: 1, rollouts: 2 }],
      trained: [{ batch_id: done.batchId, run_id: done.runId, policy: done.runId.slice(3), version: 1, rollouts: 2 }],
    });
    for (const id of [open, running, ...waiting.ids, ...done.ids]) {
      expect(await isEmpty(id)).toBe(true);
      expect(await readRollout(store.db, "default", id)).toMatchObject({
        result: null,
        reward: null,
        sessionId: null,
        subjectId: null,
      });
    }
    expect(await readRollout(store.db, "default", open)).toMatchObject({
      disposition: "dropped",
      dropReason: "deleted",
    });
    expect(await readRollout(store.db, "default", running)).toMatchObject({
      status: "cancelled",
      dropReason: "deleted",
    });
    expect(await readAttempts(store.db, "default", [running])).toMatchObject([{ status: "cancelled" }]);
    expect(await readBatchRollouts(store.db, "default", waiting.batchId)).toEqual([]);
    const [kept = ""] = done.ids;
    expect(await readRollout(store.db, "default", kept)).toMatchObject({ disposition: "trained", dropReason: null });
    expect(await isEmpty(other)).toBe(false);
    expect(await isEmpty(foreign, "other")).toBe(false);
    expect(await listAudit(store.db, "default")).toMatchObject([
      { actor: "token:j1", action: "subject.deleted", target: "alice", detail: { rollouts: 6, dropped: 4 } },
    ]);
    expect(await deleteSubject(deps, BY, "alice")).toMatchObject({ rollouts: 0, trained: [] });
  });

  it("says all of it again where it was interrupted before its end", async () => {
    const { batchId, ids } = await claimed("carol");
    const trained = { version: 1, parentVersion: 0, kind: "adapter", artifact: "a", sha256: "s", metrics: {} } as const;
    await transact(store.writer, markTrained({ tenantId: "default", batchId, ...trained }, 5));
    const open = await live({ subjectId: "carol" });
    let left = 1;
    const writer = {
      transact: (statements: Parameters<TestStore["writer"]["transact"]>[0]) =>
        left-- > 0 ? store.writer.transact(statements) : Promise.reject(new Error("killed")),
    };
    await expect(deleteSubject({ db: store.db, writer, now: 1 }, BY, "carol")).rejects.toThrow("killed");
    expect(await isEmpty(open)).toBe(true);
    const said = await deleteSubject({ db: store.db, writer: store.writer, now: 2 }, BY, "carol");
    expect(said).toMatchObject({ rollouts: 3, trained: [{ batch_id: batchId, rollouts: ids.length }] });
  });
});

describe("sweepRetention", () => {
  it("deletes live rollouts that are older than their tenant keeps them, rows and all, and nothing else", async () => {
    const settings = { fail_open: false, retention_days: 2 };
    await store.writer.append([putTenant({ id: "short", name: "Short", settings, createdAt: 1 })]);
    const now = 10 * DAY;
    const old = await live({ tenantId: "short", createdAt: 8 * DAY - 1 });
    const young = await live({ tenantId: "short", createdAt: 8 * DAY });
    const running = await live({ tenantId: "short", createdAt: 1, isOver: false });
    const unlimited = await live({ createdAt: 1 });
    const train = newId("rollout");
    const row = { id: train, tenantId: "short", agent: "never", mode: "train" as Mode, maxAttempts: 1 };
    await store.writer.append([createRollouts([row], 1)]);
    expect(await sweepRetention({ db: store.db, writer: store.writer, now })).toBe(1);
    expect(await readRollout(store.db, "short", old)).toBeUndefined();
    expect(await isEmpty(old, "short")).toBe(true);
    expect(await readAttempts(store.db, "short", [old])).toEqual([]);
    for (const id of [young, running, train]) expect(await readRollout(store.db, "short", id)).toBeDefined();
    expect(await readRollout(store.db, "default", unlimited)).toBeDefined();
    expect(await sweepRetention({ db: store.db, writer: store.writer, now })).toBe(0);
  });

  it("goes on where one sweep's bound was reached", async () => {
    const settings = { fail_open: false, retention_days: 1 };
    await store.writer.append([putTenant({ id: "many", name: "Many", settings, createdAt: 1 })]);
    const rows = Array.from({ length: 1100 }, () => newId("rollout"));
    await store.writer.transact([
      ...rows.flatMap((id) => startSelfRollout({ id, tenantId: "many", agent: "a", mode: "live" }, 1, 2)),
      { sql: "update rollouts set status = 'finished' where tenant_id = 'many'", args: [] },
    ]);
    const deps = { db: store.db, writer: store.writer, now: 10 * DAY };
    expect(await sweepRetention(deps)).toBe(1000);
    expect(await sweepRetention(deps)).toBe(100);
    const [left] = await store.db.all<{ n: number }>(sql`select count(*) n from rollouts where tenant_id = 'many'`);
    expect(left?.n).toBe(0);
  });
});
