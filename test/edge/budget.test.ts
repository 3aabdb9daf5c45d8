import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { recordCall } from "#shared/store/calls.ts";
import { connectStore } from "#shared/store/connect.ts";
import { putPrice } from "#shared/store/metering.ts";
import { budget, type BudgetRequest } from "../../edge/budget.ts";
import { startTestStore, type TestStore } from "../support/store.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startTestStore();
});
afterAll(() => store.stop());

const MARCH = Date.parse("2026-03-30T10:00:00Z");

/** A tenant whose model `flight` costs 2 for a million tokens, and its requests: each may cost 4 of a budget of 10. */
async function tenant() {
  const tenantId = newId("rollout");
  const price = (model: string, prompt: number, completion: number): Promise<unknown> =>
    store.writer.transact(
      putPrice({ tenantId, model, validFrom: 0, promptPerMillion: prompt, completionPerMillion: completion }),
    );
  await price("flight", 2, 2);
  let reads = 0;
  const beside: Promise<unknown>[] = [];
  const request = (at: number, change: Partial<BudgetRequest> = {}): BudgetRequest => ({
    tenantId,
    monthly: 10,
    model: "flight",
    promptTokens: 1_000_000,
    completionTokens: 1_000_000,
    db: () => {
      reads++;
      return store.db;
    },
    now: MARCH + at,
    later: (work) => void beside.push(work),
    ...change,
  });
  /** A call that another isolate recorded, for 3. */
  const elsewhere = (): Promise<void> =>
    store.writer.append([
      recordCall({
        id: newId("call"),
        tenantId,
        rolloutId: "ro_other",
        attempt: 1,
        mode: "live",
        dialect: "chat",
        modelAsked: "m",
        policy: "flight",
        policyVersion: 4,
        request: "{}",
        response: null,
        promptTokens: 1_000_000,
        completionTokens: 500_000,
        httpStatus: 200,
        trainable: false,
        latencyMs: 1,
        createdAt: MARCH,
      }),
    ]);
  return { request, price, elsewhere, reads: () => reads, beside: () => Promise.all(beside.splice(0)) };
}

const refused = { code: "ERR_BUDGET" };

describe("a monthly budget", () => {
  it("is reserved before a call, and settling less than was reserved frees the rest", async () => {
    const { request } = await tenant();
    const kept = budget();
    const first = await kept.reserve(request(0));
    const second = await kept.reserve(request(0));
    await expect(kept.reserve(request(0))).rejects.toMatchObject(refused);
    first?.settle(1_000_000, 0);
    second?.settle(0, 0);
    // 2 of 10 are spent: two more reservations of 4 fit exactly, and no third.
    await kept.reserve(request(0));
    await kept.reserve(request(0));
    await expect(kept.reserve(request(0, { promptTokens: 1, completionTokens: 0 }))).rejects.toThrow(
      "10.0000 are spent or reserved and it may take 0.0000",
    );
  });

  it("lets of a burst only as many begin as it covers, however they come", async () => {
    const { request } = await tenant();
    const kept = budget();
    const burst = await Promise.allSettled(Array.from({ length: 50 }, () => kept.reserve(request(0))));
    expect(burst.filter(({ status }) => status === "fulfilled")).toHaveLength(2);
    expect(burst.filter(({ status }) => status === "rejected")).toHaveLength(48);
  });

  it("is asked of the store once, then beside the calls, and knows what was spent elsewhere", async () => {
    const { request, elsewhere, reads, beside } = await tenant();
    const kept = budget();
    (await kept.reserve(request(0)))?.settle(1_000_000, 1_000_000);
    (await kept.reserve(request(2999)))?.settle(0, 0);
    expect(reads()).toBe(2);
    await elsewhere();
    await elsewhere();
    // Still the old figure, while the new one is asked for: once, however many calls come meanwhile.
    const under = [await kept.reserve(request(3000)), await kept.reserve(request(3001, { promptTokens: 0 }))];
    for (const reservation of under) reservation?.settle(0, 0);
    await beside();
    expect(reads()).toBe(4);
    // 6 elsewhere. This isolate's own 4 are in what the store says by now, were they recorded.
    (await kept.reserve(request(3002)))?.settle(0, 0);
    await elsewhere();
    await elsewhere();
    await kept.reserve(request(6003, { promptTokens: 0, completionTokens: 0 }));
    await beside();
    await expect(kept.reserve(request(6004))).rejects.toThrow("12.0000 are spent");
    await expect(kept.reserve(request(Date.parse("2026-04-02") - MARCH))).resolves.toBeDefined();
  });

  it("does not forget what is settled while the store is being asked", async () => {
    const { request, beside } = await tenant();
    const kept = budget();
    const slow = await kept.reserve(request(0));
    const refreshing = kept.reserve(request(3000, { promptTokens: 0, completionTokens: 0 }));
    slow?.settle(1_000_000, 1_000_000);
    (await refreshing)?.settle(0, 0);
    await beside();
    await kept.reserve(request(3100));
    await expect(kept.reserve(request(3100))).rejects.toThrow("8.0000 are spent or reserved");
  });

  it("reserves what the dearest version of a policy costs, since which will answer is not known yet", async () => {
    const { request, price } = await tenant();
    await price("flight@4", 1, 1);
    await price("flight@5", 6, 6);
    await expect(budget().reserve(request(0))).rejects.toThrow("it may take 12.0000");
    await expect(budget().reserve(request(0, { model: "flight@4" }))).resolves.toBeDefined();
  });

  it("goes on with what it knows while the store is away, and where it knows nothing says so", async () => {
    const { request } = await tenant();
    const kept = budget();
    const away = connectStore({ url: "http://127.0.0.1:1", token: "x", timeoutMs: 500 });
    await expect(kept.reserve(request(0, { db: () => away }))).rejects.toThrow("Failed query");
    await kept.reserve(request(0));
    await kept.reserve(request(20_000, { db: () => away }));
    await expect(kept.reserve(request(20_000, { db: () => away }))).rejects.toMatchObject(refused);
  });

  it("is no limit where the tenant has none, or the model no price, and then asks the store nothing", async () => {
    const { request, reads } = await tenant();
    expect(await budget().reserve(request(0, { monthly: undefined }))).toBeUndefined();
    expect(reads()).toBe(0);
    expect(await budget().reserve(request(0, { model: "free" }))).toBeUndefined();
  });
});
