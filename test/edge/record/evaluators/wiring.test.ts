import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { asc, eq } from "drizzle-orm";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import type { AgentSettingsInput } from "#shared/agent-settings.ts";
import { newId } from "#shared/ids.ts";
import { readRewards } from "#shared/store/rewards.ts";
import { readRollouts, startSelfRollout, type Rollout } from "#shared/store/rollouts.ts";
import { readUsage } from "#shared/store/usage.ts";
import { calls, type Json } from "#shared/tables.ts";
import { startTestEdge, type TestEdge } from "../../../support/edge.ts";
import { json, startMockProvider, type MockProvider } from "../../../support/provider.ts";
import { until } from "../../../support/until.ts";

/** Evaluators that have to be asked, on the real stack: workerd, its service bindings, libSQL, a scripted provider. */

const AGENT = { binding: "AGENT_OBEDIENT", policy: "flight" };

let edge: TestEdge;
let provider: MockProvider;
beforeAll(async () => {
  provider = await startMockProvider();
  edge = await startTestEdge({
    agents: { obedient: AGENT },
    agentEntries: { obedient: join(import.meta.dirname, "../../dispatch/obedient-agent.ts") },
    evaluatorEntries: { EVAL_WORDS: join(import.meta.dirname, "own-evaluator.ts") },
  });
  await edge.admin.putProvider("theirs", { baseUrl: provider.baseUrl, key: "sk-theirs" });
});
afterAll(async () => {
  await edge.stop();
  await provider.stop();
});
beforeEach(() => {
  provider.requests.length = 0;
  edge.inference.requests.length = 0;
  edge.inference.answer = () => ({ tokens: ["Hello", " world"] });
});

/** Another name for the same Worker, with settings of its own. */
let agents = 0;
async function newAgent(settings: AgentSettingsInput): Promise<string> {
  const name = `obedient-${++agents}`;
  await edge.admin.putAgent(name, { ...AGENT, ...settings });
  return name;
}

/** Has the dispatcher run one task of an agent to its end; the agent ends with `at once: 1`. */
async function dispatched(agent: string, expected: Json = null): Promise<Rollout> {
  const id = newId("rollout");
  const taskId = newId("task");
  const judge = expected === null ? null : { expected };
  await edge.admin.createTasks([{ id: taskId, agent, split: "train", input: { behave: "answer" }, judge }]);
  await edge.admin.createRollouts([{ id, taskId, agent, mode: "train", maxAttempts: 1 }]);
  return until(
    "the rollout's end",
    async () => {
      const [rollout] = await readRollouts(edge.store.db, "default", [id]);
      return rollout !== undefined && rollout.finishedAt !== null && rollout;
    },
    25_000,
  );
}

/** A rollout that its agent started by itself, with one call. */
async function selfStarted(agent: string): Promise<string> {
  const { rolloutId, token } = await edge.admin.createToken({ agent, mode: "train" });
  const call = { model: "any", messages: [{ role: "user", content: "hi" }] };
  expect((await edge.post("/v1/chat/completions", token, call)).status).toBe(200);
  return rolloutId ?? "";
}

function callsOf(rolloutId: string) {
  return edge.store.db.select().from(calls).where(eq(calls.rolloutId, rolloutId)).orderBy(asc(calls.createdAt));
}

async function terminalOf(rolloutId: string): Promise<unknown[]> {
  const rewards = await readRewards(edge.store.db, "default", [rolloutId]);
  return rewards.filter(({ source }) => source === "terminal").map(({ name, value }) => [name, value]);
}

function says(content: string): MockProvider["answer"] {
  return (_request, response) =>
    json(response, {
      model: "gpt-9-2026",
      choices: [{ index: 0, message: { role: "assistant", content }, finish_reason: "stop" }],
      usage: { prompt_tokens: 40, completion_tokens: 9, total_tokens: 49 },
    });
}

const LLM_JUDGE = { type: "llm_judge", model: "provider:theirs/gpt-9", prompt: "Is it polite?" } as const;

describe("a model that judges", () => {
  it("gives a dispatched rollout its reward, and is a call of it that nothing is trained on", async () => {
    provider.answer = says("Polite enough.\nscore: 7");
    const agent = await newAgent({ evaluator: LLM_JUDGE });
    const rollout = await dispatched(agent, "a greeting");
    // 0.9·0.7 + 0.1·1
    expect(rollout).toMatchObject({ status: "finished", error: null, disposition: null });
    expect(rollout.reward).toBeCloseTo(0.73, 12);
    expect(await terminalOf(rollout.id)).toEqual([["judge", expect.closeTo(0.73, 12)]]);
    expect(await callsOf(rollout.id)).toMatchObject([
      { role: "main", policy: "flight", trainable: true },
      {
        role: "judge",
        provider: "theirs",
        policy: null,
        modelAsked: "gpt-9",
        trainable: false,
        error: "frozen",
        attempt: 1,
        promptTokens: 40,
        completionTokens: 9,
        response: { content: "Polite enough.\nscore: 7" },
      },
    ]);
    // What it was asked with: its own key, and the result as data.
    expect(provider.requests).toHaveLength(1);
    const [asked] = provider.requests;
    expect(asked).toMatchObject({ path: "/v1/chat/completions", headers: { authorization: "Bearer sk-theirs" } });
    expect(asked?.body).toMatchObject({ model: "gpt-9", messages: [{ role: "system" }, { role: "user" }] });
    const { messages } = (asked?.body ?? { messages: [] }) as { messages: { content: string }[] };
    expect(JSON.parse(messages[1]?.content ?? "")).toEqual({
      input: { behave: "answer" },
      expected: "a greeting",
      result: "at once: 1",
    });
    const used = await readUsage(edge.store.db, "default");
    expect(used.filter(({ model }) => model.includes("gpt-9"))).toMatchObject([
      { mode: "train", calls: 1, promptTokens: 40, completionTokens: 9 },
    ]);
  });

  it("that fails leaves the rollout finished with the reason, and the failed call recorded", async () => {
    provider.answer = (_request, response) => json(response, { error: { message: "no such model" } }, 400);
    const agent = await newAgent({ evaluator: LLM_JUDGE });
    const rollout = await dispatched(agent);
    expect(rollout).toMatchObject({
      status: "finished",
      result: "at once: 1",
      attempt: 1,
      reward: null,
      disposition: "dropped",
      dropReason: "no_reward",
      error: expect.stringContaining("no such model"),
    });
    expect(await terminalOf(rollout.id)).toEqual([]);
    expect(await callsOf(rollout.id)).toMatchObject([
      { role: "main" },
      { role: "judge", httpStatus: 400, trainable: false, error: expect.stringContaining("no such model") },
    ]);

    // Judged later by one that works, on the same result.
    provider.answer = says("10");
    const anew = await edge.admin.recomputeRewards({ rolloutIds: [rollout.id], settings: { evaluator: LLM_JUDGE } });
    expect(anew).toMatchObject({ scanned: 1, changed: 1, failures: 0 });
    expect(await readRollouts(edge.store.db, "default", [rollout.id])).toMatchObject([
      { reward: 1, disposition: null, dropReason: null },
    ]);
    expect((await callsOf(rollout.id)).map(({ role }) => role)).toEqual(["main", "judge", "judge"]);
  });

  it("may be a policy, whose answer is then no more trained on than a provider's", async () => {
    const agent = await newAgent({ evaluator: { ...LLM_JUDGE, model: "policy:flight", scale: 1 } });
    const id = await selfStarted(agent);
    edge.inference.answer = () => ({ tokens: ["score", ": ", "0.5"] });
    const finished = await edge.admin.finishRollout(id, { result: "Good day!" });
    expect(finished).toMatchObject({ status: "finished", reward: expect.closeTo(0.55, 12), error: null });
    expect(await callsOf(id)).toMatchObject([
      { role: "main", trainable: true },
      {
        role: "judge",
        policy: "flight",
        policyVersion: 0,
        provider: null,
        trainable: false,
        responseTokenIds: null,
        behaviourLogprobs: null,
      },
    ]);
  });

  it("is not asked where the month's budget does not cover it", async () => {
    await edge.admin.putPrice({ model: "theirs/gpt-9", prompt_per_million: 1e6, completion_per_million: 1e6 });
    await edge.admin.patchTenant({ monthly_budget: 60 });
    try {
      const agent = await newAgent({ evaluator: LLM_JUDGE });
      const id = await selfStarted(agent);
      const finished = await edge.admin.finishRollout(id, { result: "Good day!" });
      expect(finished).toMatchObject({
        reward: null,
        error: expect.stringContaining("budget"),
        dropReason: "no_reward",
      });
      expect(provider.requests).toEqual([]);
    } finally {
      await edge.admin.patchTenant({ monthly_budget: null });
    }
  });
});

describe("the SQL evaluator", () => {
  it("is bound to a local edge, and its reward arrives", async () => {
    const setup =
      "create table flights (code text, city text); insert into flights values ('SAS12', 'Oslo'), ('AF5', 'Rome');";
    const agent = await newAgent({ evaluator: { type: "sql", setup } });
    const rewardOf = async (result: string): Promise<number | null> => {
      const id = newId("rollout");
      const taskId = newId("task");
      const judge = { expected: "select code from flights where city = 'Oslo'" };
      await edge.admin.createTasks([{ id: taskId, agent, split: "val", input: {}, judge }]);
      const now = Date.now();
      const rollout = { id, tenantId: "default", agent, mode: "val", taskId } as const;
      await edge.store.writer.transact(startSelfRollout(rollout, now, now + 60_000));
      const { reward, error } = await edge.admin.finishRollout(id, { result });
      expect(error).toBeNull();
      return reward;
    };
    expect(await rewardOf("```sql\nselect code from flights where city like 'Os%'\n```")).toBe(1);
    // It runs, and gives other rows.
    expect(await rewardOf("select code from flights")).toBeCloseTo(0.1, 12);
    expect(await rewardOf("select nothing from nowhere")).toBe(0);
  });
});

describe("an evaluator of one's own", () => {
  let server: Server;
  let url: string;
  beforeAll(async () => {
    server = createServer((request, response) => {
      response.setHeader("content-type", "application/json");
      response.end(JSON.stringify({ score: request.method === "POST" ? 0.25 : 0 }));
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/judge`;
  });
  afterAll(() => server.close());

  it("judges behind a service binding, with what was expected and what was called", async () => {
    const agent = await newAgent({ evaluator: { type: "worker", binding: "EVAL_WORDS" } });
    const rollout = await dispatched(agent, ["once", "twice"]);
    // One word of two: 0.9·0.5 + 0.1·1.
    expect(rollout).toMatchObject({ reward: expect.closeTo(0.55, 12), error: null });
  });

  it("judges at its url", async () => {
    const agent = await newAgent({ evaluator: { type: "worker", url } });
    expect(await dispatched(agent)).toMatchObject({ reward: expect.closeTo(0.325, 12), error: null });
  });

  it("that is nowhere leaves the reason, and the edge's own bindings are none", async () => {
    const agent = await newAgent({ evaluator: { type: "worker", binding: "EVAL_MISSING" } });
    expect(await dispatched(agent)).toMatchObject({
      status: "finished",
      reward: null,
      error: expect.stringContaining("EVAL_MISSING"),
    });
    await expect(newAgent({ evaluator: { type: "worker", binding: "STORE" } })).rejects.toThrow(/EVAL_/);
  });
});
