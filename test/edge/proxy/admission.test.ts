import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { connectStore } from "#shared/store/connect.ts";
import { recordCall } from "#shared/store/calls.ts";
import { cancelRollout, startSelfRollout } from "#shared/store/rollouts.ts";
import { revokeToken } from "#shared/store/tokens.ts";
import { newId } from "#shared/ids.ts";
import type { StoreWriter } from "#shared/store/statement.ts";
import { admission, type AdmissionRequest } from "../../../edge/proxy/admission.ts";
import { LLM_ROUTES } from "../../../edge/proxy/llm-routes.ts";
import { startTestStore, type TestStore } from "../../support/store.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startTestStore();
});
afterAll(() => store.stop());

const NOW = 1_795_000_000_000;
const TENANT = "default";

/** A running rollout with a token of these caps, as a request at a time. */
async function running(caps = { maxCalls: 3, maxTokens: 100 }, mode: "train" | "live" = "train") {
  const rolloutId = newId("rollout");
  const jti = crypto.randomUUID();
  await store.writer.transact(
    startSelfRollout({ id: rolloutId, tenantId: TENANT, agent: "flight", mode }, NOW, NOW + 900_000),
  );
  let reads = 0;
  const beside: Promise<unknown>[] = [];
  const request = (at: number, change: Partial<AdmissionRequest> = {}): AdmissionRequest => ({
    principal: { tenantId: TENANT, scopes: ["call"], jti, expiresAtSeconds: NOW / 1000 + 900 },
    rollout: { rolloutId, attempt: 1, agent: "flight", mode, pin: null, caps },
    db: () => {
      reads++;
      return store.db;
    },
    writer: store.writer,
    most: () => expect.unreachable("the tenant has no budget"),
    now: NOW + at,
    later: (work) => void beside.push(work),
    ...change,
  });
  return { rolloutId, jti, request, reads: () => reads, beside: () => Promise.all(beside) };
}

describe("admission", () => {
  it("looks at the store once for each rollout, and then at all that call in one question beside the calls", async () => {
    const caps = { maxCalls: 100, maxTokens: 1000 };
    const [one, other] = [await running(caps), await running(caps)];
    const gate = admission();
    for (const at of [0, 10, 499]) await gate.admit(one.request(at));
    await gate.admit(other.request(499));
    expect([one.reads(), other.reads()]).toEqual([1, 1]);
    await gate.admit(one.request(500));
    await one.beside();
    expect([one.reads(), other.reads()]).toEqual([2, 1]);
    // The other's state is a second old by now, but was looked at again with the first's.
    await gate.admit(other.request(1499, { db: () => expect.unreachable("it need not ask") }));
  });

  it("looks beside the calls at those too that did not call lately, for ten seconds", async () => {
    const caps = { maxCalls: 100, maxTokens: 1000 };
    const [busy, slow] = [await running(caps), await running(caps)];
    const gate = admission();
    for (const { request } of [slow, busy]) await gate.admit(request(0));
    for (let at = 500; at <= 9500; at += 500) {
      await gate.admit(busy.request(at));
      await busy.beside();
    }
    await gate.admit(slow.request(9900, { db: () => expect.unreachable("it need not ask") }));
    for (let at = 10_000; at <= 21_000; at += 500) {
      await gate.admit(busy.request(at));
      await busy.beside();
    }
    expect(slow.reads()).toBe(1);
    await gate.admit(slow.request(21_100));
    expect(slow.reads()).toBe(2);
  });

  it("refuses a call at once while records are behind, and asks it to come again after a second", async () => {
    const { request, reads } = await running();
    const gate = admission();
    let behind = true;
    const writer = { ...store.writer, isBehind: () => behind };
    const refused = await gate.admit(request(0, { writer })).catch((thrown: unknown) => thrown);
    expect(refused).toMatchObject({ code: "ERR_STORE", retryAfterSeconds: 1 });
    expect(reads()).toBe(0);
    // In the words of each dialect.
    for (const [path, body] of [
      ["/v1/chat/completions", { error: { type: "server_error", code: "ERR_STORE" } }],
      ["/v1/messages", { type: "error", error: { type: "overloaded_error" } }],
    ] as const) {
      const response = LLM_ROUTES.get(path)?.errorResponse(refused);
      expect([path, response?.status, response?.headers.get("retry-after")]).toEqual([path, 503, "1"]);
      expect(await response?.json()).toMatchObject(body);
    }
    behind = false;
    // Nothing was spent.
    for (let call = 0; call < 3; call++) await gate.admit(request(0, { writer }));
    await expect(gate.admit(request(0, { writer }))).rejects.toThrow("has spent its budget (3 of 3 calls");
  });

  it("learns of an end, a revocation and a new attempt from the question beside the calls", async () => {
    const [ended, revoked, again] = [await running(), await running(), await running()];
    const gate = admission();
    for (const { request } of [ended, revoked, again]) await gate.admit(request(0));
    await store.writer.transact(cancelRollout(TENANT, ended.rolloutId, NOW));
    await store.writer.append([
      [revokeToken({ jti: revoked.jti, tenantId: TENANT, expiresAt: NOW + 900_000 }, NOW)].flat(),
      [{ sql: "update rollouts set attempt = 2 where id = ?", args: [again.rolloutId] }],
    ]);
    await gate.admit(ended.request(600));
    await ended.beside();
    await expect(gate.admit(ended.request(700))).rejects.toThrow("is cancelled");
    await expect(gate.admit(revoked.request(700))).rejects.toMatchObject({ code: "ERR_AUTH" });
    await expect(gate.admit(again.request(700))).rejects.toThrow("is at attempt 2");
  });

  it("asks itself once the state is old, where the question beside the calls failed", async () => {
    const { request, reads, beside } = await running();
    const gate = admission();
    await gate.admit(request(0));
    const unreachable = connectStore({ url: "http://127.0.0.1:1", token: "x", timeoutMs: 500 });
    await gate.admit(request(600, { db: () => unreachable }));
    await beside();
    await gate.admit(request(1001));
    expect(reads()).toBe(2);
  });

  it("counts calls across looks at the store, and what was recorded before it knew the rollout", async () => {
    const { rolloutId, request } = await running({ maxCalls: 3, maxTokens: 1000 });
    await store.writer.append([
      recordCall({
        id: newId("call"),
        tenantId: TENANT,
        rolloutId,
        attempt: 1,
        mode: "train",
        dialect: "chat",
        modelAsked: "m",
        request: "{}",
        response: null,
        promptTokens: 10,
        completionTokens: 5,
        httpStatus: 200,
        trainable: false,
        latencyMs: 1,
        createdAt: NOW,
      }),
    ]);
    const gate = admission();
    await gate.admit(request(0));
    await gate.admit(request(2000));
    await expect(gate.admit(request(4000))).rejects.toMatchObject({
      code: "ERR_FORBIDDEN",
      message: expect.stringContaining("3 of 3 calls"),
    });
  });

  it("counts the tokens that calls report when they leave", async () => {
    const { request } = await running();
    const gate = admission();
    (await gate.admit(request(0))).leave({ prompt: 60, completion: 40 });
    await expect(gate.admit(request(1))).rejects.toThrow("100 of 100 tokens");
  });

  it("lets two first calls at once spend one budget", async () => {
    const { request } = await running({ maxCalls: 2, maxTokens: 100 });
    const gate = admission();
    await Promise.all([gate.admit(request(0)), gate.admit(request(0))]);
    await expect(gate.admit(request(1))).rejects.toThrow("2 of 2 calls");
  });

  it("notices an end and a revocation within a second, or at once where it is told", async () => {
    const ended = await running();
    const gate = admission();
    await gate.admit(ended.request(0));
    await store.writer.transact(cancelRollout(TENANT, ended.rolloutId, NOW));
    await gate.admit(ended.request(500));
    gate.forget(ended.rolloutId);
    await expect(gate.admit(ended.request(600))).rejects.toMatchObject({ code: "ERR_FORBIDDEN" });

    const revoked = await running();
    await gate.admit(revoked.request(0));
    await store.writer.append([revokeToken({ jti: revoked.jti, tenantId: TENANT, expiresAt: NOW + 900_000 }, NOW)]);
    await expect(gate.admit(revoked.request(1001))).rejects.toMatchObject({ code: "ERR_AUTH" });
  });

  it("refuses another attempt's token, an unknown rollout, and another tenant's", async () => {
    const { request } = await running();
    const gate = admission();
    const { rollout, principal } = request(0);
    await expect(gate.admit(request(0, { rollout: { ...rollout, attempt: 2 } }))).rejects.toThrow("is at attempt 1");
    await expect(gate.admit(request(0, { rollout: { ...rollout, rolloutId: "ro_none" } }))).rejects.toThrow(
      "does not exist",
    );
    await expect(admission().admit(request(0, { principal: { ...principal, tenantId: "other" } }))).rejects.toThrow(
      "does not exist",
    );
  });

  it("refuses train calls while the store is away, and lets a known live rollout go on", async () => {
    const down: StoreWriter = { ...store.writer, status: () => Promise.resolve({ storeUp: false, outbox: 3 }) };
    const train = await running();
    await expect(admission().admit(train.request(0, { writer: down }))).rejects.toMatchObject({
      code: "ERR_STORE",
      retryAfterSeconds: 1,
    });

    const live = await running({ maxCalls: 10, maxTokens: 100 }, "live");
    const gate = admission();
    await gate.admit(live.request(0, { writer: down }));
    const unreachable = connectStore({ url: "http://127.0.0.1:1", token: "x", timeoutMs: 500 });
    await expect(gate.admit(live.request(5000, { db: () => unreachable }))).resolves.toBeDefined();
    await expect(admission().admit(live.request(5000, { db: () => unreachable }))).rejects.toMatchObject({
      code: "ERR_STORE",
    });

    // A look at a store that hangs takes seconds: the next calls wait for none until one beside them has succeeded.
    await gate.admit(live.request(5100, { db: () => expect.unreachable("it need not ask") }));
    await store.writer.transact(cancelRollout(TENANT, live.rolloutId, NOW));
    await gate.admit(live.request(6500));
    await live.beside();
    await expect(gate.admit(live.request(6600))).rejects.toThrow("is cancelled");
  });
});
