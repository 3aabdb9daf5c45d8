import { afterAll, beforeAll, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { startTestEdge, type TestEdge } from "../../support/edge.ts";

let edge: TestEdge;
beforeAll(async () => {
  edge = await startTestEdge();
});
afterAll(() => edge.stop());

it("claims live traffic that feedback gave a reward to", async () => {
  const since = Date.now() - 60_000;
  const ids: string[] = [];
  for (const value of [1, 0]) {
    const { rolloutId, token } = await edge.admin.createToken({ agent: "flight", mode: "live" });
    const chat = { model: "any", messages: [{ role: "user", content: "hi" }] };
    expect((await edge.post("/v1/chat/completions", token, chat)).status).toBe(200);
    await edge.admin.finishRollout(rolloutId ?? "", { result: "Hello" });
    expect(await edge.admin.giveFeedback({ rolloutId: rolloutId ?? "", value })).toMatchObject({ accepted: true });
    ids.push(rolloutId ?? "");
  }
  const claim = { batchId: newId("batch"), runId: newId("run"), policy: "flight", step: 0, groups: 4 };
  const live = { agent: "flight", groupSize: 2, since, versions: [0] };
  expect((await edge.admin.claimBatch({ ...claim, live: { ...live, versions: [7] } })).rolloutIds).toEqual([]);
  expect((await edge.admin.claimBatch({ ...claim, live })).rolloutIds).toEqual(ids);
  expect(await edge.admin.giveFeedback({ rolloutId: ids[0] ?? "", value: 0, name: "late" })).toMatchObject({
    reason: "already_trained",
  });
});
