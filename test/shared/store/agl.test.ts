import { sql } from "drizzle-orm";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { newAglEventId, readAglEvents, recordAglEvent } from "#shared/store/agl-events.ts";
import { deleteAglModels, readAglModels, registerAglModels } from "#shared/store/agl-models.ts";
import { aglPauseState, enterAgl, leaveAgl, pauseAgl, resumeAgl, stayAgl } from "#shared/store/agl-pause.ts";
import {
  changeAglStatus,
  deleteAglRollout,
  enqueueAglRollouts,
  listAglAttempts,
  listAglRollouts,
  listEndedAglRollouts,
  readAglRollout,
  type AglRollout,
  type NewAglRollout,
} from "#shared/store/agl-rollouts.ts";
import { openShadow, rewardShadow, shadowOf } from "#shared/store/agl-shadow.ts";
import { readRewards } from "#shared/store/rewards.ts";
import { readAttempts, readRollout } from "#shared/store/rollouts.ts";
import { transact, type Statement } from "#shared/store/statement.ts";
import { startTestStore, type TestStore } from "../../support/store.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startTestStore();
});
afterAll(() => store.stop());

let tenants = 0;
/** A tenant of its own for each test. */
const newTenant = (): string => `tenant-${(tenants += 1)}`;

const fresh = (id: string, fields: Partial<NewAglRollout> = {}): NewAglRollout => ({
  id,
  shadowId: newId("rollout"),
  input: { prompt: id },
  isTrain: true,
  config: { timeout_seconds: 1, local: null, k8s: null },
  metadata: {},
  dataId: id,
  ...fields,
});

const run = (statements: Statement[]): Promise<unknown> => store.writer.transact(statements);

async function create(tenant: string, id: string, fields: Partial<NewAglRollout> = {}): Promise<AglRollout> {
  const [rollout] = await transact(store.writer, enqueueAglRollouts(tenant, [fresh(id, fields)], 1000));
  if (rollout === undefined) throw new Error("not created");
  return rollout;
}

const to = (tenant: string, id: string, state: AglRollout["state"], now = 2000) =>
  transact(store.writer, changeAglStatus(tenant, id, { state }, now));

describe("rollouts", () => {
  it("are created once under an id, and belong to one tenant", async () => {
    const [one, other] = [newTenant(), newTenant()];
    const first = await create(one, "r");
    const second = await create(one, "r", { input: "changed" });
    expect(second).toEqual(first);
    expect((await create(other, "r")).shadowId).not.toBe(first.shadowId);
    await run(deleteAglRollout(other, "r", 1));
    expect(await readAglRollout(store.db, one, "r")).toEqual(first);
    expect(await readAglRollout(store.db, other, "r")).toBeUndefined();
    expect(await to(other, "r", "running")).toEqual({ status: "missing" });
  });

  it("are listed in the order of their creation, whatever their ids", async () => {
    const tenant = newTenant();
    for (const id of ["b", "a", "c"]) await create(tenant, id);
    await to(tenant, "c", "running");
    const ids = async (limit: number): Promise<string[]> =>
      (await listAglRollouts(store.db, tenant, { states: ["running", "queuing"], limit })).map(({ id }) => id);
    expect(await ids(9)).toEqual(["b", "a", "c"]);
    expect(await ids(2)).toEqual(["b", "a"]);
    expect(await ids(-1)).toEqual([]);
  });

  it("take one place in the order of ended rollouts, which deletion leaves empty", async () => {
    const tenant = newTenant();
    for (const id of ["a", "b", "c"]) await create(tenant, id);
    await to(tenant, "b", "failed");
    expect(await to(tenant, "b", "failed")).toMatchObject({ status: "refused", rollout: { version: 2 } });
    await to(tenant, "a", "failed");
    await run(deleteAglRollout(tenant, "b", 1));
    await create(tenant, "b");
    await to(tenant, "b", "failed");
    await to(tenant, "c", "failed");
    const page = (after: number, limit: number) => listEndedAglRollouts(store.db, tenant, { after, limit });
    expect((await page(0, 10)).items.map(({ id }) => id)).toEqual(["a", "b", "c"]);
    expect(await page(0, 1)).toEqual({ items: [], nextAfter: 1, total: 4 });
    expect(await page(2, 1)).toMatchObject({ items: [{ id: "b" }], nextAfter: 3 });
    expect(await page(4, 10)).toEqual({ items: [], nextAfter: 4, total: 4 });
    expect(await listEndedAglRollouts(store.db, newTenant(), { after: 0, limit: 1 })).toEqual({
      items: [],
      nextAfter: 0,
      total: 0,
    });
  });
});

describe("events", () => {
  it("are stored once however often they are sent, and not without their rollout", async () => {
    const tenant = newTenant();
    const { seq } = await create(tenant, "r");
    const event = {
      id: newAglEventId(),
      tenantId: tenant,
      rolloutId: "r",
      attemptId: "x",
      eventType: "note",
      data: { a: 1 },
    };
    await run([...recordAglEvent(event, 5), ...recordAglEvent(event, 6)]);
    await run(recordAglEvent({ ...event, id: newAglEventId(), attemptId: "0" }, 7));
    expect(await readAglEvents(store.db, seq, "x")).toMatchObject([{ data: { a: 1 }, createdAt: 5, callId: null }]);
    expect(await listAglAttempts(store.db, { seq })).toEqual(["x", "0"]);
    const rows = await store.writer.transact(recordAglEvent({ ...event, rolloutId: "nobody" }, 5));
    expect(rows.at(-1)).toEqual([]);
    await run(deleteAglRollout(tenant, "r", 1));
    expect(await readAglEvents(store.db, seq, "x")).toEqual([]);
  });
});

describe("the shadow", () => {
  const attempt = (tenantId: string, attemptId = "0") => ({ tenantId, id: "r", attemptId });

  it("is opened once, with a number for each attempt, and runs until its rollout ends", async () => {
    const tenant = newTenant();
    const { shadowId } = await create(tenant, "r");
    await run([
      ...openShadow(attempt(tenant), 10),
      ...openShadow(attempt(tenant), 11),
      ...openShadow(attempt(tenant, "b"), 12),
    ]);
    expect(await readRollout(store.db, tenant, shadowId)).toMatchObject({
      agent: "agent-lightning",
      mode: "train",
      status: "running",
      attempt: 2,
      leaseUntil: null,
      taskId: null,
      createdAt: 10,
    });
    const rows = await store.writer.transact([shadowOf(attempt(tenant, "b")), shadowOf(attempt(tenant, "none"))]);
    expect(rows).toEqual([[{ shadow_id: shadowId, number: 2 }], []]);
    await to(tenant, "r", "running");
    await to(tenant, "r", "succeeded", 50);
    expect(await readRollout(store.db, tenant, shadowId)).toMatchObject({
      status: "finished",
      finishedAt: 50,
      disposition: null,
    });
    expect(
      (await readAttempts(store.db, tenant, [shadowId])).map(({ attempt: number, status }) => [number, status]),
    ).toEqual([
      [1, "finished"],
      [2, "finished"],
    ]);
  });

  it("has the newest reward when its rollout ends, and a later one after that", async () => {
    const tenant = newTenant();
    const { shadowId } = await create(tenant, "r");
    const reward = (value: number, now: number) =>
      run(rewardShadow(attempt(tenant), { id: newId("reward"), name: "reward", value }, now));
    await reward(0.25, 10);
    await reward(0.5, 20);
    await to(tenant, "r", "running");
    await to(tenant, "r", "succeeded");
    expect((await readRollout(store.db, tenant, shadowId))?.reward).toBe(0.5);
    await reward(0.75, 30);
    expect((await readRollout(store.db, tenant, shadowId))?.reward).toBe(0.75);
    expect(
      (await readRewards(store.db, tenant, [shadowId])).map(({ value, attempt: number }) => [value, number]),
    ).toEqual([
      [0.25, 1],
      [0.5, 1],
      [0.75, 1],
    ]);
  });

  it("that is opened after the end has ended", async () => {
    const tenant = newTenant();
    const { shadowId } = await create(tenant, "r", { isTrain: false });
    await to(tenant, "r", "failed");
    await run(rewardShadow(attempt(tenant), { id: newId("reward"), name: "reward", value: 1 }, 10));
    expect(await readRollout(store.db, tenant, shadowId)).toMatchObject({
      mode: "val",
      status: "failed",
      reward: 1,
      disposition: "dropped",
      dropReason: "agent_failed",
    });
  });

  it("of a validation is dropped as an evaluation", async () => {
    const tenant = newTenant();
    const { shadowId } = await create(tenant, "r", { isTrain: false });
    await run(openShadow(attempt(tenant), 10));
    await to(tenant, "r", "running");
    await to(tenant, "r", "succeeded");
    expect(await readRollout(store.db, tenant, shadowId)).toMatchObject({
      disposition: "dropped",
      dropReason: "evaluation",
    });
  });

  it("outlives its rollout's deletion, and an id that is used again has another", async () => {
    const tenant = newTenant();
    const { shadowId } = await create(tenant, "r");
    await run(rewardShadow(attempt(tenant), { id: newId("reward"), name: "reward", value: 1 }, 10));
    await run(deleteAglRollout(tenant, "r", 60));
    expect(await readRollout(store.db, tenant, shadowId)).toMatchObject({
      status: "cancelled",
      disposition: "dropped",
      dropReason: "deleted",
      finishedAt: 60,
    });
    expect(await readRewards(store.db, tenant, [shadowId])).toHaveLength(1);
    const again = await create(tenant, "r");
    await run(openShadow(attempt(tenant), 70));
    expect(again.shadowId).not.toBe(shadowId);
    expect((await readRollout(store.db, tenant, again.shadowId))?.status).toBe("running");
  });

  it("of a rollout that does not exist is nothing", async () => {
    const tenant = newTenant();
    await run(rewardShadow(attempt(tenant), { id: newId("reward"), name: "reward", value: 1 }, 10));
    const counted = await store.db.all(sql`
      select (select count(*) from rollouts where tenant_id = ${tenant}) as rollouts,
        (select count(*) from rewards where tenant_id = ${tenant}) as rewards,
        (select count(*) from attempts where tenant_id = ${tenant}) as attempts`);
    expect(counted).toEqual([{ rollouts: 0, rewards: 0, attempts: 0 }]);
  });
});

describe("models", () => {
  it("are one a name and endpoint, the newest name first, until they are all removed", async () => {
    const tenant = newTenant();
    const model = (name: string, endpoint: string, version = 0) => ({ model: name, endpoint, version });
    await run(registerAglModels(tenant, [model("a", "http://2"), model("a", "http://1")], 1));
    await run(registerAglModels(tenant, [model("b", "http://1"), model("a", "http://1", 7)], 2));
    const read = async (name?: string): Promise<unknown[]> =>
      (await readAglModels(store.db, tenant, name)).map(({ model: of, endpoint, version }) => [of, endpoint, version]);
    expect(await read()).toEqual([
      ["a", "http://1", 7],
      ["b", "http://1", 0],
      ["a", "http://2", 0],
    ]);
    expect(await read("b")).toEqual([["b", "http://1", 0]]);
    await run(deleteAglModels(newTenant()));
    expect(await read()).toHaveLength(3);
    await run(deleteAglModels(tenant));
    expect(await read()).toEqual([]);
  });
});

describe("the pause", () => {
  const seat = (tenantId: string, callId: string, expiresAt = 10_000) => ({ tenantId, callId, expiresAt });

  it("lets no call in, and counts those that were before it until they leave", async () => {
    const [tenant, other] = [newTenant(), newTenant()];
    const enter = (callId: string, now = 1) => transact(store.writer, enterAgl(seat(tenant, callId), now));
    expect(await enter(`${tenant}-1`)).toEqual({ paused: false, retryAfterSeconds: 5, reason: null, inflight: 1 });
    expect((await enter(`${tenant}-1`)).inflight).toBe(1);
    expect((await transact(store.writer, enterAgl(seat(other, `${other}-1`), 1))).inflight).toBe(1);
    const paused = await transact(store.writer, pauseAgl(tenant, { retryAfterSeconds: 9, reason: "w" }, 2));
    expect(paused).toEqual({ paused: true, retryAfterSeconds: 9, reason: "w", inflight: 1 });
    expect(await enter(`${tenant}-2`)).toEqual(paused);
    await run([leaveAgl(`${tenant}-1`)]);
    expect((await transact(store.writer, aglPauseState(tenant, 3))).inflight).toBe(0);
    expect(await transact(store.writer, aglPauseState(other, 3))).toMatchObject({ paused: false, inflight: 1 });
    expect(await transact(store.writer, resumeAgl(tenant, 4))).toEqual({
      paused: false,
      retryAfterSeconds: 9,
      reason: null,
      inflight: 0,
    });
    expect((await enter(`${tenant}-2`)).inflight).toBe(1);
  });

  it("forgets a call that never ended when it expires", async () => {
    const tenant = newTenant();
    await transact(store.writer, enterAgl(seat(tenant, `${tenant}-1`, 100), 1));
    expect((await transact(store.writer, aglPauseState(tenant, 99))).inflight).toBe(1);
    expect((await transact(store.writer, aglPauseState(tenant, 100))).inflight).toBe(0);
    await run([stayAgl({ callId: `${tenant}-1`, expiresAt: 200 }), stayAgl({ callId: "nobody", expiresAt: 200 })]);
    expect((await transact(store.writer, aglPauseState(tenant, 199))).inflight).toBe(1);
    expect((await transact(store.writer, aglPauseState(tenant, 200))).inflight).toBe(0);
  });
});
