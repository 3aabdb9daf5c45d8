import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { recordCall } from "#shared/store/calls.ts";
import { startTestStore, type TestStore } from "../support/store.ts";
import { newLedger, NOTHING_WRONG, type Ledger } from "../support/ledger.ts";

/** The ledger that all of these tests trust finds what it is there to find. */

let store: TestStore;
beforeAll(async () => {
  store = await startTestStore();
});
afterAll(() => store.stop());

async function storeCall(nonce: string): Promise<string> {
  const id = newId("call");
  const request = JSON.stringify({ messages: [{ role: "user", content: nonce }] });
  await store.writer.append([
    recordCall({
      ...{ id, tenantId: "default", rolloutId: "ro_1", attempt: 1, mode: "live", dialect: "chat", modelAsked: "m" },
      ...{ request, response: null, httpStatus: 200, trainable: false, latencyMs: 1, createdAt: 1 },
    }),
  ]);
  return id;
}

async function execute(sql: string, ...args: string[]): Promise<void> {
  await store.writer.transact([{ sql, args }]);
}

async function storeRollout(status: string, reward: string, disposition: string): Promise<string> {
  const id = newId("rollout");
  await execute(
    `insert into rollouts (id, tenant_id, agent, mode, status, max_attempts, reward, disposition, drop_reason, created_at)
     values (?, 'default', 'a', 'train', ?, 1, ${reward}, ${disposition}, null, 1)`,
    id,
    status,
  );
  return id;
}

describe("a ledger", () => {
  it("finds nothing wrong where all is kept, and every loss where it is not", async () => {
    const ledger = newLedger();
    ledger.asked("kept");
    ledger.call(await storeCall("kept"), "kept");
    const finished = await storeRollout("finished", "0.5", "null");
    ledger.finished(finished, 0.5);
    expect(await ledger.audit(store.db)).toEqual(NOTHING_WRONG);

    ledger.call("ca_gone", "gone");
    ledger.call(await storeCall("one"), "another");
    ledger.reward("a reward");
    ledger.span("a span");
    ledger.finished(finished, 0.75);
    ledger.trained("ba_gone", [finished]);
    const { lost } = await ledger.audit(store.db);
    expect(lost.map((what) => what.replace(/(ca|ro)_[0-9a-f]{32}/, "$1_…"))).toEqual([
      "call ca_gone",
      "call ca_…",
      "reward a reward",
      "span a span",
      "the end of rollout ro_…",
      "the training of rollout ro_…",
    ]);
  });

  it("finds a request that is stored twice, and a call that is counted twice", async () => {
    const ledger = newLedger();
    ledger.asked("twice");
    await storeCall("twice");
    await storeCall("twice");
    expect((await ledger.audit(store.db)).duplicated).toEqual(["call of twice"]);
    await execute("update usage set calls = calls + 1 where model = 'm'");
    expect((await ledger.audit(store.db)).duplicated).toEqual([
      "call of twice",
      expect.stringMatching(/^usage counts \d+ calls, \d+ are stored$/),
    ]);
    await execute("update usage set calls = calls - 1 where model = 'm'");
  });

  it.each([
    {
      what: "a disposition that changes",
      sql: "update rollouts set disposition = 'dropped', drop_reason = 'stale' where id = ?",
    },
    {
      what: "one that is trained in no batch",
      sql: "update rollouts set disposition = 'trained', drop_reason = null where id = ?",
    },
    {
      what: "one that is dropped for no reason",
      sql: "update rollouts set disposition = 'dropped', drop_reason = null where id = ?",
    },
    {
      what: "one that is trained and dropped",
      sql: "update rollouts set disposition = 'trained', drop_reason = 'stale' where id = ?",
    },
  ])("finds $what", async ({ sql }) => {
    const ledger: Ledger = newLedger();
    const id = await storeRollout("finished", "0.5", "'trained'");
    await ledger.look(store.db);
    await execute(sql, id);
    const { twoDispositions } = await ledger.audit(store.db);
    expect(twoDispositions.filter((found) => found.includes(id))).not.toEqual([]);
    await execute("delete from rollouts where id = ?", id);
  });
});
