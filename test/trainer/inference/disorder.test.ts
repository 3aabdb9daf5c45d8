import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { choiceOf, numbers, startTestEndpoint, type TestEndpoint } from "./endpoint.ts";
import { randomNumbers, writeTinyAdapter, writeTinyModel } from "./tiny-model.ts";

/** Clients that leave, versions that come and go, and more of both than there is room for: every answer is still its own. */

const VERSIONS = ["base", "flight@1", "flight@2", "flight@3"];
const SEEDS = 6;
let endpoint: TestEndpoint;

beforeAll(async () => {
  endpoint = await startTestEndpoint(
    async (dir) => {
      const modelDir = join(dir, "model");
      await writeTinyModel(modelDir);
      for (const n of [1, 2, 3]) {
        await writeTinyAdapter(join(dir, "adapters", "flight", `${n}`), { name: `flight@${n}`, modelDir, seed: n });
      }
    },
    { threads: 2, maxVersions: 1, maxSequences: 6 },
  );
});
afterAll(() => endpoint.close());

test("answers stay whole and of their version among 200 requests, a third of which are abandoned", async () => {
  const expected = new Map<string, number[]>();
  for (const model of VERSIONS) {
    for (let seed = 0; seed < SEEDS; seed++) {
      const { body } = await endpoint.post("/v1/chat/completions", requestOf(model, seed));
      expected.set(`${model} ${seed}`, numbers(choiceOf(body)["token_ids"]));
    }
  }
  const random = randomNumbers(12);
  const pick = (count: number): number => Math.floor(Math.abs(random()) * 1e6) % count;
  const plans = Array.from({ length: 200 }, () => ({
    model: VERSIONS[pick(VERSIONS.length)] ?? "base",
    seed: pick(SEEDS),
    action: ["whole", "whole", "leave", "unload"][pick(4)] ?? "whole",
    chunks: pick(6),
  }));
  let answered = 0;
  let left = 0;
  const streams = Array.from({ length: 20 }, async () => {
    for (let plan = plans.pop(); plan !== undefined; plan = plans.pop()) {
      const { model, seed, action, chunks } = plan;
      if (action === "leave") {
        await leaveAfter(requestOf(model, seed), chunks);
        left++;
        continue;
      }
      // Base and versions that are not loaded answer 404 here, which is as it should be.
      if (action === "unload") await endpoint.post("/v1/unload_lora_adapter", { lora_name: model });
      const { status, body } = await endpoint.post("/v1/chat/completions", requestOf(model, seed));
      expect([status, body["model"]]).toEqual([200, model]);
      expect(choiceOf(body)["token_ids"]).toEqual(expected.get(`${model} ${seed}`));
      answered++;
    }
  });
  await Promise.all(streams);
  expect(answered + left).toBe(200);
  expect(left).toBeGreaterThan(20);
  await expect
    .poll(async () => (await endpoint.get("/metrics")).text(), { timeout: 5000 })
    .toMatch(/vllm:num_requests_running 0\n(.*\n)+vllm:num_requests_waiting 0\n/);
});

function requestOf(model: string, seed: number): Record<string, unknown> {
  return {
    model,
    messages: [{ role: "user", content: `question ${seed}` }],
    seed,
    max_tokens: 20 + 5 * seed,
    ignore_eos: true,
    return_token_ids: true,
  };
}

/** Asks for a stream and hangs up after some chunks of it, or at once. */
async function leaveAfter(request: Record<string, unknown>, chunks: number): Promise<void> {
  const leaving = new AbortController();
  const asked = fetch(`${endpoint.url}/v1/chat/completions`, {
    method: "POST",
    body: JSON.stringify({ ...request, stream: true }),
    signal: leaving.signal,
  });
  if (chunks > 0) {
    const reader = (await asked).body?.getReader();
    for (let read = 0; read < chunks; read++) await reader?.read();
  }
  leaving.abort();
  await asked.catch(() => undefined);
}
