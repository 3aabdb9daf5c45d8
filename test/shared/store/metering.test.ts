import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { recordCall } from "#shared/store/calls.ts";
import {
  listPrices,
  putPrice,
  readCosts,
  readInvocations,
  readRolloutCosts,
  readSpent,
} from "#shared/store/metering.ts";
import { startSelfRollout } from "#shared/store/rollouts.ts";
import { startTestStore, type TestStore } from "../../support/store.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startTestStore();
});
afterAll(() => store.stop());

const FIRST = Date.parse("2026-03-30T10:00:00Z");
const SECOND = Date.parse("2026-03-31T10:00:00Z");

async function call(tenantId: string, rolloutId: string, at: number, model: { policy: string } | { provider: string }) {
  await store.writer.append([
    recordCall({
      id: newId("call"),
      tenantId,
      rolloutId,
      attempt: 1,
      mode: "live",
      dialect: "chat",
      modelAsked: "m",
      policy: "policy" in model ? model.policy : null,
      policyVersion: "policy" in model ? 4 : null,
      provider: "provider" in model ? model.provider : null,
      ...("provider" in model ? { modelAnswered: "gpt-9-2026", usageModel: `${model.provider}/gpt-9` } : {}),
      request: "{}",
      response: null,
      promptTokens: 1_000_000,
      completionTokens: 500_000,
      httpStatus: 200,
      trainable: false,
      latencyMs: 1,
      createdAt: at,
    }),
  ]);
}

async function rollout(tenantId: string): Promise<string> {
  const id = newId("rollout");
  await store.writer.transact(
    startSelfRollout({ id, tenantId, agent: "flight", mode: "live", pin: null }, FIRST, FIRST + 1e9),
  );
  return id;
}

function price(tenantId: string, model: string, from: string, prompt: number, completion: number) {
  return store.writer.transact(
    putPrice({
      tenantId,
      model,
      validFrom: Date.parse(from),
      promptPerMillion: prompt,
      completionPerMillion: completion,
    }),
  );
}

describe("costs", () => {
  it("are those of the call's day: a later price changes nothing before it", async () => {
    const id = await rollout("days");
    await call("days", id, FIRST, { policy: "flight" });
    await call("days", id, SECOND, { policy: "flight" });
    await price("days", "flight", "2026-03-01", 2, 4);
    await price("days", "flight", "2026-03-31", 1, 0);
    const rows = await readCosts(store.db, "days", "2026-03-01");
    expect(rows.map(({ day, model, cost }) => [day, model, cost])).toEqual([
      ["2026-03-31", "flight@4", 1],
      ["2026-03-30", "flight@4", 4],
    ]);
    expect(await readSpent(store.db, "days", "2026-03-01")).toBe(5);
    expect(await readSpent(store.db, "days", "2026-03-31")).toBe(1);
    expect(await readRolloutCosts(store.db, "days", 5)).toMatchObject([
      { rollout_id: id, calls: 2, prompt_tokens: 2_000_000, cost: 5 },
    ]);
  });

  it("prefer the very version's price to the policy's, and that to *", async () => {
    const id = await rollout("names");
    await call("names", id, FIRST, { policy: "flight" });
    await price("names", "*", "2026-01-01", 9, 0);
    const cost = async () => (await readCosts(store.db, "names", "2026-03-01"))[0]?.cost;
    expect(await cost()).toBe(9);
    await price("names", "flight", "2026-01-01", 2, 0);
    expect(await cost()).toBe(2);
    await price("names", "flight@4", "2026-01-01", 3, 0);
    expect(await cost()).toBe(3);
    expect((await listPrices(store.db, "names")).map((row) => row.model)).toEqual(["*", "flight", "flight@4"]);
  });

  it("are null where nothing has a price, and never another tenant's", async () => {
    const id = await rollout("none");
    await call("none", id, FIRST, { policy: "flight" });
    expect(await readCosts(store.db, "none", "2026-03-01")).toMatchObject([{ cost: null }]);
    expect(await readSpent(store.db, "none", "2026-03-01")).toBe(0);
  });

  it("of a provider's calls are those of the model that answered, else of the name that was asked for", async () => {
    const id = await rollout("frozen");
    await call("frozen", id, FIRST, { provider: "openai" });
    await price("frozen", "*", "2026-01-01", 9, 0);
    await price("frozen", "openai/m", "2026-01-01", 2, 0);
    expect(await readRolloutCosts(store.db, "frozen", 5)).toMatchObject([{ rollout_id: id, cost: 2 }]);
    expect(await readCosts(store.db, "frozen", "2026-03-01")).toMatchObject([{ model: "openai/gpt-9", cost: 9 }]);
    await price("frozen", "openai/gpt-9-2026", "2026-01-01", 3, 0);
    expect(await readRolloutCosts(store.db, "frozen", 5)).toMatchObject([{ cost: 3 }]);
  });

  it("count an agent's runs and their time", async () => {
    const id = await rollout("runs");
    await store.writer.append([
      [{ sql: "update attempts set finished_at = started_at + 250 where rollout_id = ?", args: [id] }],
    ]);
    await rollout("runs");
    expect(await readInvocations(store.db, "runs", FIRST - 1)).toEqual([
      { agent: "flight", mode: "live", invocations: 2, wall_ms: 250 },
    ]);
  });
});
