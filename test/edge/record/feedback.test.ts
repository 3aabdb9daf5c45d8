import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { claimGroups } from "#shared/store/batches.ts";
import { recordCall } from "#shared/store/calls.ts";
import { readRewards } from "#shared/store/rewards.ts";
import {
  closeRollout,
  createRollouts,
  dropRollouts,
  leaseRollouts,
  readRollout,
  startSelfRollout,
  type Rollout,
} from "#shared/store/rollouts.ts";
import { putRun } from "#shared/store/runs.ts";
import { transact } from "#shared/store/statement.ts";
import type { FeedbackInput } from "#shared/wire-feedback.ts";
import type { Mode } from "#shared/words.ts";
import { findFeedbackTarget, refusalOf, takeFeedback, type FeedbackSettings } from "../../../edge/record/feedback.ts";
import { startTestStore, type TestStore } from "../../support/store.ts";

const HOUR = 3_600_000;
const SETTINGS: FeedbackSettings = { feedback: { window_hours: 72, modes: ["live", "train"] } };
const LIVE = { tenantId: "default", agent: "flight", mode: "live" as Mode };

let store: TestStore;
beforeAll(async () => {
  store = await startTestStore();
});
afterAll(() => store.stop());

async function live(id = newId("rollout")): Promise<string> {
  await store.writer.append([startSelfRollout({ ...LIVE, id }, 1000, 9_999_999_999_999)]);
  return id;
}

const close = (id: string, change: Partial<Parameters<typeof closeRollout>[1]> = {}) =>
  store.writer.append([
    closeRollout({ tenantId: "default", rolloutId: id, attempt: 1 }, { now: 2000, status: "finished", ...change }),
  ]);

async function say(
  about: { rolloutId?: string; callId?: string },
  change: Partial<FeedbackInput> = {},
  { now = 3000, settings = SETTINGS }: { now?: number; settings?: FeedbackSettings } = {},
) {
  const target = await findFeedbackTarget(store.db, "default", about);
  const input = { value: 1, name: "feedback", ...change };
  return takeFeedback({ db: store.db, writer: store.writer, now }, target, { input, settings });
}

const rollout = (id: string): Promise<Rollout | undefined> => readRollout(store.db, "default", id);

describe("refusalOf", () => {
  const target = (change: object, more: object = {}) =>
    ({
      rollout: { mode: "live", status: "finished", disposition: null, dropReason: null, ...change },
      lastAt: 1000,
      inBatch: false,
      ...more,
    }) as unknown as Parameters<typeof refusalOf>[0];

  it("knows the window, the modes, and what is beyond feedback", () => {
    const cases: readonly (readonly [Parameters<typeof refusalOf>[0], number, ReturnType<typeof refusalOf>])[] = [
      [target({}), 1000 + 72 * HOUR, null],
      [target({}), 1001 + 72 * HOUR, "too_late"],
      [target({ status: "running" }), 1000, null],
      [target({ status: "failed" }), 1000, "not_eligible"],
      [target({ status: "queued" }), 1000, "not_eligible"],
      [target({ mode: "val" }), 1000, "not_eligible"],
      [target({ disposition: "dropped", dropReason: "deleted" }), 1000, "deleted"],
      [target({ disposition: "dropped", dropReason: "stale" }), 1000, null],
      [target({ disposition: "trained" }), 1000, "already_trained"],
      [target({}, { inBatch: true }), 1000, "already_trained"],
      [target({ disposition: "trained" }), 1001 + 72 * HOUR, "too_late"],
    ];
    expect(cases.map(([given, now]) => refusalOf(given, SETTINGS, now))).toEqual(cases.map((each) => each[2]));
  });
});

describe("takeFeedback", () => {
  it("becomes the reward of a finished rollout that nobody judged: the mean of what was said", async () => {
    const id = await live();
    await close(id);
    expect(await say({ rolloutId: id })).toMatchObject({ accepted: true, reason: null });
    expect(await rollout(id)).toMatchObject({ reward: 1, disposition: null, outcome: null });
    await say({ rolloutId: id }, { key: "second user", value: 0 });
    expect(await rollout(id)).toMatchObject({ reward: 0.5 });
  });

  it("counts once for each key, and its first value stays", async () => {
    const id = await live();
    await close(id);
    const first = await say({ rolloutId: id }, { value: 1, key: "k" });
    const again = await say({ rolloutId: id }, { value: -1, key: "k" });
    expect(again.rewardId).toBe(first.rewardId);
    expect(await rollout(id)).toMatchObject({ reward: 1 });
    expect(await readRewards(store.db, "default", [id])).toMatchObject([
      { source: "feedback", value: 1, key: `feedback:${id}:k` },
    ]);
  });

  it("stays apart from a terminal reward, and waits for a rollout that is still running", async () => {
    const judged = await live();
    await close(judged, {
      reward: 0.4,
      outcome: { status: 0, terminal: 0.4, correctness: 0, format: 0, tools: [] },
    });
    expect(await say({ rolloutId: judged })).toMatchObject({ accepted: true });
    expect(await rollout(judged)).toMatchObject({ reward: 0.4 });
    const running = await live();
    expect(await say({ rolloutId: running })).toMatchObject({ accepted: true });
    expect(await rollout(running)).toMatchObject({ status: "running", reward: null });
  });

  it("finds the rollout by an answer's id in any dialect, and keeps the call and the redacted comment", async () => {
    const id = await live();
    const callId = newId("call");
    await store.writer.append([
      recordCall({
        id: callId,
        tenantId: "default",
        rolloutId: id,
        attempt: 1,
        mode: "live",
        dialect: "responses",
        modelAsked: "m",
        request: "{}",
        response: null,
        httpStatus: 200,
        trainable: false,
        latencyMs: 1,
        createdAt: 5 * HOUR,
      }),
    ]);
    await close(id);
    const key = callId.slice(3);
    const settings: FeedbackSettings = { ...SETTINGS, live: { redact: [{ pattern: "\\d+", replacement: "#" }] } };
    const late = 5 * HOUR + 72 * HOUR;
    for (const [answerId, name] of [
      [callId, "a"],
      [`resp_${key}`, "b"],
      [`msg_${key}`, "c"],
      [`fc_${key}_2`, "d"],
    ] as const) {
      expect(await say({ callId: answerId }, { name, comment: "call 555" }, { settings, now: late })).toMatchObject({
        accepted: true,
      });
    }
    const kept = await readRewards(store.db, "default", [id]);
    expect(kept.map((row) => [row.name, row.callId, row.detail])).toEqual(
      ["a", "b", "c", "d"].map((name) => [name, callId, { comment: "call #" }]),
    );
    await expect(say({ callId, rolloutId: await live() })).rejects.toMatchObject({ code: "ERR_INVALID_REQUEST" });
    await expect(say({ callId: newId("call") })).rejects.toMatchObject({ code: "ERR_NOT_FOUND" });
    await expect(findFeedbackTarget(store.db, "other", { callId })).rejects.toMatchObject({ code: "ERR_NOT_FOUND" });
  });

  it("says why it comes too late, with the window, and keeps nothing", async () => {
    const id = await live();
    await close(id);
    expect(await say({ rolloutId: id }, {}, { now: 2001 + 72 * HOUR })).toMatchObject({
      accepted: false,
      rewardId: null,
      reason: "too_late",
      windowHours: 72,
      lastAt: 2000,
      message: expect.stringContaining("window"),
    });
    expect(await readRewards(store.db, "default", [id])).toEqual([]);
  });

  it("frees a train rollout that was dropped for want of a reward, while its run goes on", async () => {
    const runs = { goesOn: newId("run"), over: newId("run") };
    const run = (id: string, finishedAt: number | null) =>
      putRun({ id, tenantId: "default", policy: "flight", agent: "flight", config: {}, createdAt: 1, finishedAt });
    await store.writer.append([run(runs.goesOn, null), run(runs.over, 5)]);
    const unrewarded = async (runId: string): Promise<string> => {
      const id = newId("rollout");
      const row = { id, tenantId: "default", agent: runId, mode: "train" as Mode, maxAttempts: 1, groupId: id, runId };
      await store.writer.append([createRollouts([row], 1)]);
      await transact(store.writer, leaseRollouts({ agent: runId, limit: 9, now: 10, leaseMs: 10 }));
      await close(id, { disposition: "dropped", dropReason: "no_reward" });
      return id;
    };
    const free = await unrewarded(runs.goesOn);
    const gone = await unrewarded(runs.over);
    await say({ rolloutId: free });
    await say({ rolloutId: gone });
    expect(await rollout(free)).toMatchObject({ reward: 1, disposition: null, dropReason: null });
    expect(await rollout(gone)).toMatchObject({ reward: 1, disposition: "dropped", dropReason: "no_reward" });
  });

  it("is kept without effect where a batch has the rollout", async () => {
    const runId = newId("run");
    const groupId = newId("group");
    const ids = [newId("rollout"), newId("rollout")];
    const rows = ids.map((id) => ({
      id,
      tenantId: "default",
      agent: runId,
      mode: "train" as Mode,
      maxAttempts: 1,
      groupId,
      runId,
    }));
    await store.writer.append([createRollouts(rows, 1)]);
    await transact(store.writer, leaseRollouts({ agent: runId, limit: 9, now: 10, leaseMs: 10 }));
    for (const id of ids) await close(id, { reward: 0.25 });
    const claim = { tenantId: "default", batchId: newId("batch"), runId, policy: "flight", step: 1, groups: 1 };
    expect(await transact(store.writer, claimGroups(claim, 1))).toHaveLength(2);
    const [id = ""] = ids;
    const taken = await say({ rolloutId: id });
    expect(taken).toMatchObject({ accepted: false, reason: "already_trained", rewardId: expect.any(String) });
    expect(await rollout(id)).toMatchObject({ reward: 0.25 });
    expect(await readRewards(store.db, "default", [id])).toMatchObject([{ id: taken.rewardId, source: "feedback" }]);
  });

  it("is refused for what was deleted", async () => {
    const id = await live();
    await close(id);
    await store.writer.append([dropRollouts("default", [id], { reason: "deleted", now: 2500 })]);
    expect(await say({ rolloutId: id })).toMatchObject({ accepted: false, reason: "deleted", rewardId: null });
  });
});
