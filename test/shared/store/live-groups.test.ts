import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { packFloats, packIds } from "#shared/packed.ts";
import { claimGroups, markTrained, type Claim } from "#shared/store/batches.ts";
import { recordCall, type CallRecord } from "#shared/store/calls.ts";
import { giveFeedback } from "#shared/store/feedback.ts";
import { countFreeLive, type LiveGroups } from "#shared/store/live-groups.ts";
import { closeRollout, createRollouts, leaseRollouts, readRollouts, startSelfRollout } from "#shared/store/rollouts.ts";
import { transact } from "#shared/store/statement.ts";
import type { Mode } from "#shared/words.ts";
import { deleteSubject } from "../../../edge/record/subjects.ts";
import { sift } from "../../../trainer/batch/sift.ts";
import { PRESETS } from "../../../trainer/algorithm.ts";
import { storeReader } from "../../../trainer/store-reader.ts";
import { startTestStore, type TestStore } from "../../support/store.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startTestStore();
});
afterAll(() => store.stop());

/** A tenant of its own for each test, so that none sees another's rows. */
let tenantId: string;
let runId: string;
let time = 1000;
beforeEach(() => {
  tenantId = `te_${newId("run")}`;
  runId = newId("run");
});

interface LiveOptions {
  readonly reward?: number | null;
  readonly mode?: Mode;
  readonly agent?: string;
  readonly subjectId?: string;
  readonly ended?: boolean;
  /** One call by default, of `flight@3`. */
  readonly calls?: readonly Partial<CallRecord>[];
}

/** A live rollout a second after the one before. */
async function live(options: LiveOptions = {}): Promise<string> {
  const { reward = 1, mode = "live", agent = "flight", subjectId = null, ended = true, calls = [{}] } = options;
  const id = newId("rollout");
  const at = (time += 1000);
  const ref = { tenantId, rolloutId: id, attempt: 1 };
  await store.writer.transact([
    ...startSelfRollout({ id, tenantId, agent, mode, subjectId }, at, at + 900_000),
    ...calls.flatMap((call, nth) => recordCall(callOf(id, { createdAt: at + nth, ...call }))),
    ...(ended ? closeRollout(ref, { now: at + 500, status: "finished", reward }) : []),
  ]);
  return id;
}

function callOf(rolloutId: string, more: Partial<CallRecord>): CallRecord {
  return {
    id: newId("call"),
    tenantId,
    rolloutId,
    attempt: 1,
    mode: "live",
    dialect: "chat",
    modelAsked: "any",
    policy: "flight",
    policyVersion: 3,
    request: "{}",
    response: '{"role": "assistant", "content": "Hi"}',
    promptTokenIds: packIds([1, 2, 3]),
    responseTokenIds: packIds([4, 5]),
    behaviourLogprobs: packFloats([-0.5, -0.25]),
    httpStatus: 200,
    trainable: true,
    latencyMs: 1,
    createdAt: 1,
    ...more,
  };
}

function claim(more: Partial<Omit<Claim, "live">> & { live?: Partial<LiveGroups> } = {}): Promise<string[]> {
  const given: Claim = {
    tenantId,
    batchId: newId("batch"),
    runId,
    policy: "flight",
    step: 0,
    groups: 8,
    ...more,
    live: { agent: "flight", groupSize: 2, since: 0, versions: [2, 3], ...more.live },
  };
  return transact(store.writer, claimGroups(given, time + 1000));
}

async function groupsOf(ids: readonly string[]): Promise<(string | null)[]> {
  const rows = await readRollouts(store.db, tenantId, ids);
  return ids.map((id) => rows.find((row) => row.id === id)?.groupId ?? null);
}

describe("claiming live rollouts", () => {
  it("takes whole groups in the order in which they began, and more of them under the same id", async () => {
    const ids = [];
    for (let n = 0; n < 7; n++) ids.push(await live({ reward: n / 7 }));
    const [a, b, c, d, e, f, g] = ids as [string, string, string, string, string, string, string];
    const batchId = newId("batch");
    expect(await claim({ batchId, groups: 1 })).toEqual([a, b]);
    expect(await claim({ batchId })).toEqual([a, b, c, d, e, f]);
    const name = (first: string): string => `gr_live_${first}`;
    expect(await groupsOf(ids)).toEqual([name(a), name(a), name(c), name(c), name(e), name(e), null]);
    expect(await readRollouts(store.db, tenantId, [a, g])).toMatchObject([{ runId }, { runId: null }]);
    // The one that was left finds company.
    const h = await live();
    expect(await claim({ batchId })).toEqual([a, b, c, d, e, f, g, h]);
  });

  it("takes only what finished with a reward, can be trained on, and is not too old to learn from", async () => {
    await live({ reward: null });
    await live({ ended: false });
    await live({ mode: "val" });
    await live({ mode: "train" });
    await live({ agent: "other" });
    await live({ calls: [] });
    await live({ calls: [{ policyVersion: 1 }] });
    await live({ calls: [{}, { policyVersion: 4 }] });
    await live({ calls: [{ policy: "another" }] });
    // Outside the sample, without consent or redacted: recorded as not trainable.
    await live({ calls: [{ trainable: false }] });
    await live({ calls: [{ role: "judge" }] });
    const good = [
      await live(),
      await live({ calls: [{}, { policyVersion: 2 }, { trainable: false, policy: null, policyVersion: null }] }),
    ];
    const free = (more: Partial<LiveGroups> = {}): Promise<number> =>
      countFreeLive(store.db, { tenantId, policy: "flight" }, { agent: "flight", since: 0, versions: [2, 3], ...more });
    // What is counted is what is claimed.
    expect([await free(), await free({ since: time }), await free({ agent: "other" })]).toEqual([2, 1, 1]);
    expect([await free({ versions: [1] }), await free({ versions: [3] })]).toEqual([1, 1]);
    expect(await claim({ groups: 100, live: { since: time } })).toEqual([]);
    expect(await claim({ groups: 100, step: 1 })).toEqual(good);
    expect(await free()).toBe(0);
    expect(await claim({ groups: 100, step: 2, live: { groupSize: 1 } })).toEqual([]);
  });

  it("takes a rollout that nobody judged once somebody has said something of it", async () => {
    const id = await live({ reward: null });
    expect(await claim({ live: { groupSize: 1 } })).toEqual([]);
    const ref = { tenantId, rolloutId: id, attempt: 1 };
    const feedback = {
      ...ref,
      id: newId("reward"),
      key: `feedback:${id}`,
      source: "feedback",
      name: "thumbs",
    } as const;
    await transact(store.writer, giveFeedback({ ...feedback, value: 0.75, createdAt: time }, ref));
    expect(await claim({ step: 1, live: { groupSize: 1 } })).toEqual([id]);
  });

  it("takes groups of one, each of a name of its own", async () => {
    const ids = [await live({ reward: 1 }), await live({ reward: 0 }), await live({ reward: 1 })];
    expect(await claim({ groups: 2, live: { groupSize: 1 } })).toEqual(ids.slice(0, 2));
    expect(await groupsOf(ids)).toEqual([`gr_live_${ids[0]}`, `gr_live_${ids[1]}`, null]);
  });

  it("puts no rollout in two batches, with 8 runs that claim at once", async () => {
    const ids = [];
    for (let n = 0; n < 12; n++) ids.push(await live());
    const claimed = await Promise.all(
      Array.from({ length: 8 }, () => claim({ runId: newId("run"), batchId: newId("batch"), groups: 2 })),
    );
    expect(claimed.flat().toSorted()).toEqual(ids.toSorted());
    expect(claimed.filter((each) => each.length > 0).map((each) => each.length)).toEqual([4, 4, 4]);
  });

  it("takes nothing of a deleted subject, and one that is deleted later out of the batch", async () => {
    const by = { tenantId, jti: "j" };
    await live({ subjectId: "alice" });
    await deleteSubject({ db: store.db, writer: store.writer, now: time }, by, "alice");
    const [bob, carol] = [await live({ subjectId: "bob" }), await live()];
    const batchId = newId("batch");
    expect(await claim({ batchId })).toEqual([bob, carol]);
    const said = await deleteSubject({ db: store.db, writer: store.writer, now: time }, by, "bob");
    expect(said).toMatchObject({ rollouts: 1, dropped: 1, claimed: [{ batch_id: batchId, rollouts: 1 }] });
    const sha256 = "a".repeat(64);
    const version = { version: 4, parentVersion: 3, kind: "adapter", artifact: "a", sha256, metrics: {} } as const;
    await transact(store.writer, markTrained({ tenantId, batchId, ...version }, time));
    const after = await readRollouts(store.db, tenantId, [bob ?? "", carol ?? ""]);
    expect(new Map(after.map((row) => [row.id, [row.disposition, row.dropReason]]))).toEqual(
      new Map([
        [bob, ["dropped", "deleted"]],
        [carol, ["trained", null]],
      ]),
    );
  });

  it("claims for its own tenant, run and step alone", async () => {
    await live();
    await live();
    expect(await claim({ tenantId: "te_other", runId: newId("run") })).toEqual([]);
    const batchId = newId("batch");
    await claim({ batchId, live: { agent: "nobody" } });
    await expect(claim({ step: 0 })).rejects.toMatchObject({ code: "ERR_CONFLICT" });
    await expect(claim({ batchId, step: 1 })).rejects.toMatchObject({ code: "ERR_CONFLICT" });
    expect(await claim({ batchId })).toHaveLength(2);
  });

  it("joins the run's own groups in a batch, and all of them are read and sifted as groups", async () => {
    const own = [newId("rollout"), newId("rollout")];
    const groupId = `gr_${runId}_0000000_0`;
    const row = { tenantId, agent: "flight", mode: "train", groupId, runId, maxAttempts: 1 } as const;
    await store.writer.transact(
      createRollouts(
        own.map((id) => ({ ...row, id })),
        1,
      ),
    );
    await transact(store.writer, leaseRollouts({ tenantId, agent: "flight", limit: 2, now: 2, leaseMs: 9 }));
    for (const [reward, id] of own.entries()) {
      await store.writer.transact([
        ...recordCall(callOf(id, { mode: "train" })),
        ...closeRollout({ tenantId, rolloutId: id, attempt: 1 }, { now: 3, status: "finished", reward }),
      ]);
    }
    const [liked, disliked] = [await live({ reward: 1 }), await live({ reward: 0 })];
    const batchId = newId("batch");
    const given = { tenantId, batchId, runId, policy: "flight", step: 0, groups: 8 };
    await transact(store.writer, claimGroups(given, 5));
    expect((await claim({ batchId })).toSorted()).toEqual([...own, liked, disliked].toSorted());

    const records = await storeReader(store.db, tenantId).batchRollouts(batchId);
    const { credit, advantage } = PRESETS.lightning;
    const lineage = { base: 3, made: [] };
    const { groups, dropped } = sift(records, { credit, advantage, lineage, step: 0, maxStaleness: 1 });
    expect([...dropped]).toEqual([]);
    expect(groups.map(({ groupId: name }) => name)).toEqual([groupId, `gr_live_${liked}`]);
    // Each against the mean of its window.
    expect(groups[1]?.rollouts.map(({ record, advantages_T }) => [record.id, ...advantages_T])).toEqual([
      [liked, 0.5],
      [disliked, -0.5],
    ]);
  });
});
