import { sql } from "drizzle-orm";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { startTestEdge, type TestEdge } from "../../support/edge.ts";

let edge: TestEdge;
beforeAll(async () => {
  edge = await startTestEdge();
});
afterAll(() => edge.stop());

const CHAT = "/v1/chat/completions";
const request = { model: "any", messages: [{ role: "user", content: "hi" }] };

async function storedCalls(rolloutId: string): Promise<number> {
  return (await edge.store.db.get<{ n: number }>(sql`select count(*) as n from calls where rollout_id = ${rolloutId}`))
    .n;
}

describe("while the store is away", () => {
  it("new train and val calls get 503 before inference is spent, a call in flight is answered and its record is kept, live calls are answered", async () => {
    const inFlight = await edge.rollout("train");
    const fresh = await edge.rollout("train");
    const val = await edge.rollout("val");
    const live = await edge.rollout("live");
    // The live rollout is known to this isolate: its next call needs no look at the store.
    expect((await edge.post(CHAT, live.token, request)).status).toBe(200);

    const asked = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    edge.inference.answer = async () => {
      asked.resolve();
      await goOn.promise;
      return { tokens: ["kept"] };
    };
    const answered = edge.post(CHAT, inFlight.token, request);
    await asked.promise;
    await edge.store.kill();
    goOn.resolve();
    expect((await answered).status).toBe(200);

    edge.inference.answer = () => ({ tokens: ["live"] });
    const before = edge.inference.requests.length;
    for (const { token } of [fresh, val]) {
      const refused = await edge.post(CHAT, token, request);
      expect(refused.status).toBe(503);
      expect(refused.headers.get("retry-after")).toBe("1");
      expect(await refused.json()).toMatchObject({ error: { code: "ERR_STORE" } });
    }
    expect(edge.inference.requests.length).toBe(before);
    await expect(edge.admin.cancelRollout(fresh.id)).rejects.toMatchObject({ code: "ERR_STORE" });
    const liveAnswer = await edge.post(CHAT, live.token, request);
    expect(liveAnswer.status).toBe(200);
    expect(liveAnswer.headers.get("x-fulgur-record")).toBeNull();
    expect(await (await fetch(`${edge.url}/metrics`)).text()).toMatch(/fulgur_outbox_units [1-9]/);

    // What waits survives the edge as well.
    await edge.restart();
    await edge.store.restart();
    await expect
      .poll(async () => (await fetch(`${edge.url}/metrics`)).text(), { timeout: 20_000 })
      .toMatch(/fulgur_store_up 1\n[^]*fulgur_outbox_units 0/);
    expect(await storedCalls(inFlight.id)).toBe(1);
    expect(await storedCalls(live.id)).toBe(2);
    expect(await storedCalls(fresh.id)).toBe(0);
    expect((await edge.post(CHAT, fresh.token, request)).status).toBe(200);
  }, 60_000);
});
