import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { listAudit } from "#shared/store/audit.ts";
import { registerVersion } from "#shared/store/policies.ts";
import { transact } from "#shared/store/statement.ts";
import { putTenant } from "#shared/store/tenants.ts";
import type { Scope } from "#shared/words.ts";
import { SHA256, startTestEdge, type TestEdge } from "../support/edge.ts";

let edge: TestEdge;
beforeAll(async () => {
  edge = await startTestEdge();
  await edge.store.writer.append([
    putTenant({ id: "other", name: "Other", settings: { fail_open: false }, createdAt: 1 }),
  ]);
});
afterAll(() => edge.stop());

async function ask(
  method: string,
  path: string,
  options: { scopes?: readonly Scope[]; tenantId?: string; body?: unknown } = {},
): Promise<{ status: number; body: unknown }> {
  const { scopes, tenantId = "default", body } = options;
  const response = await fetch(`${edge.url}${path}`, {
    method,
    headers: scopes === undefined ? {} : { authorization: `Bearer ${await edge.mint({ scopes, tenantId })}` },
    ...(body === undefined ? {} : { body: typeof body === "string" ? body : JSON.stringify(body) }),
  });
  return { status: response.status, body: await response.json() };
}

const task = (id: string) => ({ id, agent: "flight", split: "train" as const, input: { world: 1 }, judge: null });

describe("scopes", () => {
  it.each([
    ["POST", "/v1/tokens", "trainer"],
    ["POST", "/v1/tokens/revoke", "trainer"],
    ["POST", "/v1/tasks", "read"],
    ["POST", "/v1/rollouts", "read"],
    ["GET", "/v1/rollouts", "call"],
    ["GET", "/v1/rollouts/ro_1", "call"],
    ["POST", "/v1/rollouts/ro_1/finish", "read"],
    ["POST", "/v1/rollouts/ro_1/cancel", "read"],
    ["POST", "/v1/rollouts/drop", "read"],
    ["POST", "/v1/policies", "read"],
    ["GET", "/v1/policies", "call"],
    ["POST", "/v1/policies/flight/route", "read"],
    ["POST", "/v1/policies/flight/retire", "read"],
    ["POST", "/v1/runs", "read"],
    ["GET", "/v1/runs", "call"],
    ["GET", "/v1/runs/ru_1/steps", "call"],
    ["POST", "/v1/runs/ru_1/metrics", "read"],
    ["POST", "/v1/batches/claim", "read"],
    ["POST", "/v1/batches/ba_1/trained", "read"],
    ["POST", "/v1/batches/ba_1/abandon", "read"],
    ["GET", "/v1/usage", "call"],
  ] as const)("%s %s refuses a token with scope %s, and no token at all", async (method, path, scope) => {
    const refused = await ask(method, path, { scopes: [scope], ...(method === "POST" ? { body: {} } : {}) });
    expect(refused).toMatchObject({ status: 403, body: { error: { code: "ERR_FORBIDDEN" } } });
    expect(await ask(method, path)).toMatchObject({ status: 401, body: { error: { code: "ERR_AUTH" } } });
  });
});

describe("tenants", () => {
  it("see nothing of each other", async () => {
    const { id } = await edge.rollout();
    const foreign = { scopes: ["admin"] as const, tenantId: "other" };
    expect(await ask("GET", `/v1/rollouts/${id}`, foreign)).toMatchObject({ status: 404 });
    expect(await ask("POST", `/v1/rollouts/${id}/finish`, { ...foreign, body: { result: "x" } })).toMatchObject({
      status: 404,
    });
    expect(await ask("POST", `/v1/rollouts/${id}/cancel`, { ...foreign, body: {} })).toMatchObject({ status: 404 });
    expect(await ask("POST", "/v1/rollouts/drop", { ...foreign, body: { ids: [id], reason: "stale" } })).toEqual({
      status: 200,
      body: { dropped: 0 },
    });
    expect(
      await ask("POST", "/v1/rewards", { ...foreign, body: { rollout_id: id, name: "x", value: 1 } }),
    ).toMatchObject({ status: 404 });
    expect(await ask("GET", "/v1/rollouts", foreign)).toEqual({
      status: 200,
      body: { rollouts: [], next_after: null },
    });
    expect(await ask("GET", "/v1/policies", foreign)).toEqual({ status: 200, body: { policies: [] } });
    expect((await edge.admin.readRollout(id)).rollout.status).toBe("running");
  });

  it("a rollout's own token reaches its rollout only, and may not speak for the judge", async () => {
    const [own, other] = [await edge.rollout(), await edge.rollout()];
    const get = (id: string): Promise<Response> =>
      fetch(`${edge.url}/v1/rollouts/${id}`, { headers: { authorization: `Bearer ${own.token}` } });
    expect((await get(own.id)).status).toBe(200);
    expect((await get(other.id)).status).toBe(403);
    expect((await edge.post(`/v1/rollouts/${other.id}/finish`, own.token, {})).status).toBe(403);
    expect((await edge.post("/v1/rewards", own.token, { source: "terminal", name: "x", value: 1 })).status).toBe(403);
    const given = await edge.post("/v1/rewards", own.token, { name: "liked", value: 0.5 });
    expect(await given.json()).toMatchObject({ created: true });
    const again = await edge.post("/v1/rewards", own.token, { name: "liked", value: 0.9 });
    expect(await again.json()).toMatchObject({ created: false });
    expect((await edge.admin.readRollout(own.id)).rewards).toMatchObject([
      { source: "explicit", name: "liked", value: 0.5 },
    ]);
  });
});

describe("rollouts", () => {
  it("are created from tasks, once for each id, and listed newest first in pages", async () => {
    await edge.admin.createTasks([task("ta_list")]);
    const ids = Array.from({ length: 3 }, () => newId("rollout"));
    const rollouts = ids.map((id) => ({
      id,
      taskId: "ta_list",
      agent: "flight",
      mode: "train" as const,
      runId: "ru_list",
    }));
    await edge.admin.createRollouts(rollouts);
    await edge.admin.createRollouts(rollouts);
    const first = await edge.admin.listRollouts({ run_id: "ru_list", limit: "2" });
    expect(first.rollouts).toHaveLength(2);
    const rest = await edge.admin.listRollouts({ run_id: "ru_list", limit: "2", after: first.next_after ?? "" });
    expect(new Set([...first.rollouts, ...rest.rollouts].map(({ id }) => id))).toEqual(new Set(ids));
    expect(rest.next_after).toBeNull();
    await edge.admin.cancelRollout(ids[0] ?? "");
    const of = async (status: string): Promise<number> =>
      (await edge.admin.listRollouts({ run_id: "ru_list", status })).rollouts.length;
    const others = "queued,running,finished,failed";
    expect([await of("cancelled"), await of(others), await of(`cancelled,${others}`)]).toEqual([1, 2, 3]);
    await expect(of("queued,asleep")).rejects.toThrow(/status/);
  });

  it("need a task and an agent that exist", async () => {
    const rollout = { id: newId("rollout"), task_id: "ta_none", agent: "flight", mode: "train" };
    expect(await ask("POST", "/v1/rollouts", { scopes: ["trainer"], body: { rollouts: [rollout] } })).toMatchObject({
      status: 404,
      body: { error: { message: expect.stringContaining("ta_none") } },
    });
    const body = { rollouts: [{ ...rollout, agent: "nobody" }] };
    expect(await ask("POST", "/v1/rollouts", { scopes: ["trainer"], body })).toMatchObject({
      status: 400,
      body: { error: { message: expect.stringContaining("nobody") } },
    });
  });

  it("of a self-started agent finish once, with the reward that it gives itself", async () => {
    const { id, token } = await edge.rollout("live");
    await (
      await edge.post("/v1/chat/completions", token, { model: "m", messages: [{ role: "user", content: "x" }] })
    ).text();
    const finished = await edge.post(`/v1/rollouts/${id}/finish`, token, { result: "done", reward: 0.75 });
    expect(finished.status).toBe(200);
    expect(await finished.json()).toMatchObject({ id, status: "finished", result: "done" });
    const again = await edge.post(`/v1/rollouts/${id}/finish`, token, { result: "other" });
    expect(await again.json()).toMatchObject({ status: "finished", result: "done" });
    const late = await edge.post("/v1/chat/completions", token, {
      model: "m",
      messages: [{ role: "user", content: "x" }],
    });
    expect(late.status).toBe(403);
  });

  it("are cancelled and dropped with a reason, and stay so", async () => {
    const [cancelled, dropped] = [await edge.rollout(), await edge.rollout()];
    expect(await edge.admin.cancelRollout(cancelled.id)).toMatchObject({
      status: "cancelled",
      disposition: "dropped",
      dropReason: "cancelled",
    });
    expect(await edge.admin.dropRollouts([dropped.id, cancelled.id], "stale")).toEqual({ dropped: 1 });
    expect((await edge.admin.readRollout(cancelled.id)).rollout.dropReason).toBe("cancelled");
    expect((await edge.admin.readRollout(dropped.id)).rollout.dropReason).toBe("stale");
  });
});

describe("policies, runs and batches", () => {
  it("register, route and refuse what is not there", async () => {
    const policy = { name: "line", artifact: "here", sha256: SHA256 };
    await edge.admin.createPolicy(policy);
    await edge.admin.createPolicy(policy);
    await expect(edge.admin.createPolicy({ ...policy, sha256: "1".repeat(64) })).rejects.toMatchObject({
      code: "ERR_CONFLICT",
    });
    await expect(edge.admin.routePolicy("line", 3)).rejects.toMatchObject({ code: "ERR_NOT_FOUND" });
    const { body } = await ask("GET", "/v1/policies", { scopes: ["read"] });
    expect(body).toMatchObject({
      policies: expect.arrayContaining([
        expect.objectContaining({
          name: "line",
          route_version: 0,
          versions: [expect.objectContaining({ version: 0, sha256: SHA256 })],
        }),
      ]),
    });
  });

  it("retire what is not in use, show it, and let nobody route, pin or ask for it from then on", async () => {
    const version = { tenantId: "default", policy: "pruned", kind: "adapter", artifact: "x", createdAt: 1 } as const;
    await edge.admin.createPolicy({ name: "pruned", artifact: "here", sha256: SHA256 });
    for (const number of [1, 2]) {
      const { writer } = edge.store;
      await transact(writer, registerVersion({ ...version, version: number, sha256: String(number).repeat(64) }));
    }
    const chat = { model: "any", messages: [{ role: "user", content: "hi" }] };
    const token = await edge.mint({
      scopes: ["call"],
      rollout: {
        ...{ rolloutId: (await edge.rollout("val")).id, attempt: 1, agent: "flight", mode: "val", pin: "pruned@1" },
        caps: { maxCalls: 9, maxTokens: 9999 },
      },
    });
    expect((await edge.post("/v1/chat/completions", token, chat)).status).toBe(200);

    await edge.admin.routePolicy("pruned", 2);
    expect(await edge.admin.retireVersions("pruned", [0, 1, 2, 3])).toEqual([1]);
    expect(await edge.admin.retireVersions("pruned", [1])).toEqual([1]);
    const shown = (await edge.admin.listPolicies()).find(({ name }) => name === "pruned");
    expect(shown?.versions.map(({ version, retiredAt }) => [version, retiredAt])).toEqual([
      [2, null],
      [1, expect.any(Number)],
      [0, null],
    ]);
    const refused = { code: "ERR_CONFLICT", message: expect.stringContaining("pruned@1 is retired") };
    await expect(edge.admin.routePolicy("pruned", 1)).rejects.toMatchObject(refused);
    await expect(edge.rollout("val", { pin: "pruned@1" })).rejects.toMatchObject(refused);
    await edge.admin.createTasks([task("t-pinned")]);
    const pinned = { id: newId("rollout"), taskId: "t-pinned", agent: "flight", mode: "val" as const, pin: "pruned@1" };
    await expect(edge.admin.createRollouts([pinned])).rejects.toMatchObject(refused);
    // What asked for it a moment ago is told so too, in words that no SDK repeats.
    const answer = await edge.post("/v1/chat/completions", token, chat);
    expect([answer.status, await answer.json()]).toMatchObject([
      404,
      { error: { code: "model_not_found", message: expect.stringContaining("pruned@1 is retired") } },
    ]);
    const deeds = (await listAudit(edge.store.db, "default")).filter(({ target }) => target === "pruned");
    expect(deeds.map(({ action }) => action)).toEqual(["policy.retired", "policy.routed", "policy.registered"]);
  });

  it("take a run from its claim to a trained version", async () => {
    const runId = newId("run");
    await edge.admin.putRun({ id: runId, policy: "flight", agent: "flight", config: { steps: 1 } });
    await edge.admin.putRun({
      id: runId,
      policy: "flight",
      agent: "flight",
      config: { steps: 1 },
      evalBefore: { reward: 0.1 },
    });
    expect((await edge.admin.listRuns()).find(({ id }) => id === runId)).toMatchObject({
      evalBefore: { reward: 0.1 },
      finishedAt: null,
    });
    await edge.admin.putMetrics(runId, [{ step: 0, name: "memory", value: 1 }]);

    const batchId = newId("batch");
    const claimed = await edge.admin.claimBatch({ batchId, runId, policy: "flight", step: 1, groups: 4 });
    expect(claimed).toEqual({ batchId, rolloutIds: [] });
    const trained = {
      version: 1,
      parentVersion: 0,
      kind: "adapter" as const,
      artifact: "a",
      sha256: SHA256,
      metrics: { loss: 0.5 },
    };
    await edge.admin.markTrained(batchId, trained);
    await edge.admin.markTrained(batchId, trained);
    await expect(edge.admin.abandonBatch(batchId, "stale")).rejects.toMatchObject({ code: "ERR_CONFLICT" });
    // What is measured after a step's row was written is among its metrics.
    await edge.admin.putMetrics(runId, [{ step: 1, name: "seconds_publish", value: 0.25 }]);
    const [step] = await edge.admin.listSteps(runId);
    expect(step).toMatchObject({ step: 1, batchId, version: 1, metrics: { loss: 0.5, seconds_publish: 0.25 } });
    expect(await edge.admin.listSteps(runId, 0)).toEqual([step]);
    expect(await edge.admin.listSteps(runId, 1)).toEqual([]);
    expect(await ask("GET", `/v1/runs/${runId}/steps?since=x`, { scopes: ["read"] })).toMatchObject({
      status: 400,
      body: { error: { message: expect.stringContaining("since") } },
    });
  });
});

describe("bodies and paths", () => {
  it.each([
    ["unknown fields", "/v1/runs", { id: "r", policy: "flight", agent: "flight", config: {}, surprise: 1 }, "surprise"],
    ["malformed JSON", "/v1/tasks", "{", "not valid JSON"],
    [
      "a judge whose pattern cannot be used",
      "/v1/tasks",
      { tasks: [{ ...task("ta_bad"), judge: { answer_pattern: "(", format_pattern: "x", expected: "y" } }] },
      "(",
    ],
  ])("refuses %s in a sentence", async (_what, path, body, named) => {
    expect(await ask("POST", path, { scopes: ["admin"], body })).toMatchObject({
      status: 400,
      body: { error: { code: "ERR_INVALID_REQUEST", message: expect.stringContaining(named) } },
    });
  });

  it("answers an unknown route under Anthropic's in Anthropic's form", async () => {
    const count = { model: "claude", messages: [{ role: "user", content: "hi" }] };
    expect(await ask("POST", "/v1/messages/count_tokens", { body: count })).toEqual({
      status: 404,
      body: {
        type: "error",
        error: { type: "not_found_error", message: "there is no route POST /v1/messages/count_tokens" },
        request_id: expect.stringMatching(/^req_/),
      },
    });
  });

  it("answers an unknown route with 404 in the same form", async () => {
    expect(await ask("GET", "/v1/nothing", { scopes: ["read"] })).toMatchObject({
      status: 404,
      body: { error: { code: "ERR_NOT_FOUND" } },
    });
    expect(await ask("POST", "/elsewhere", { body: {} })).toMatchObject({
      status: 404,
      body: { error: { code: "ERR_NOT_FOUND" } },
    });
  });

  it("shows health, public keys without their private half, and counters to anyone", async () => {
    expect(await ask("GET", "/healthz")).toMatchObject({ status: 200, body: { ok: true } });
    const jwks = await ask("GET", "/.well-known/jwks.json");
    expect(jwks.body).toMatchObject({ keys: [{ kty: "OKP", kid: edge.keys.keys[0]?.kid }] });
    expect(JSON.stringify(jwks.body)).not.toContain('"d"');
    expect(await (await fetch(`${edge.url}/metrics`)).text()).toMatch(/^fulgur_calls_total \d+$/m);
  });

  it("gives the page a session on the loopback name, and no other site's page", async () => {
    const session = await fetch(`${edge.url}/v1/session`);
    const { token } = (await session.json()) as { token: string };
    const read = await fetch(`${edge.url}/v1/runs`, { headers: { authorization: `Bearer ${token}` } });
    expect(read.status).toBe(200);
    const write = await edge.post("/v1/policies", token, {});
    expect(write.status).toBe(403);
    const foreign = await fetch(`${edge.url}/v1/session`, { headers: { "sec-fetch-site": "cross-site" } });
    expect(foreign.status).toBe(403);
  });

  it("counts calls and tokens per day, model and mode", async () => {
    const { token } = await edge.rollout("val");
    await (
      await edge.post("/v1/chat/completions", token, { model: "m", messages: [{ role: "user", content: "x" }] })
    ).text();
    const { body } = await ask("GET", "/v1/usage", { scopes: ["read"] });
    expect(body).toMatchObject({
      usage: expect.arrayContaining([
        expect.objectContaining({ model: "flight@0", mode: "val", calls: 1, prompt_tokens: 5, completion_tokens: 2 }),
      ]),
    });
  });
});
