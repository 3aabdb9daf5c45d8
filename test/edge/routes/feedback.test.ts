import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { startSelfRollout } from "#shared/store/rollouts.ts";
import { putTenant } from "#shared/store/tenants.ts";
import type { Scope } from "#shared/words.ts";
import { startTestEdge, type TestEdge } from "../../support/edge.ts";

/** Tool results, feedback, recomputation and deletion through a whole edge. */

let edge: TestEdge;
beforeAll(async () => {
  edge = await startTestEdge({
    agents: {
      flight: {
        binding: "AGENT_FLIGHT",
        policy: "flight",
        tools: { memory: { weight: 0.3, success: { success_pattern: "^ok" } }, search: 0.2 },
      },
    },
  });
  await edge.store.writer.append([
    putTenant({ id: "other", name: "Other", settings: { fail_open: false }, createdAt: 1 }),
  ]);
});
afterAll(() => edge.stop());

interface Options {
  readonly scopes?: readonly Scope[];
  readonly tenantId?: string;
  readonly token?: string;
}

async function ask(
  method: string,
  path: string,
  body: unknown,
  { scopes = ["trainer"], tenantId = "default", token }: Options = {},
): Promise<{ status: number; body: Record<string, unknown> }> {
  const bearer = token ?? (await edge.mint({ scopes, tenantId }));
  const response = await fetch(`${edge.url}${path}`, {
    method,
    headers: { authorization: `Bearer ${bearer}` },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

async function call(token: string): Promise<string> {
  const response = await edge.post("/v1/chat/completions", token, {
    model: "m",
    messages: [{ role: "user", content: "x" }],
  });
  const { id } = (await response.json()) as { id: string };
  return id;
}

describe("tool results", () => {
  it("are one signal for each tool call, by the tool's rules, whichever channel saw it first", async () => {
    const { id, token } = await edge.rollout("live");
    const path = `/v1/rollouts/${id}/tool-results`;
    const bad = { tool_call_id: "c1", tool: "memory", result: "not found" };
    expect(await ask("POST", path, bad, { token })).toMatchObject({
      status: 200,
      body: { created: true, succeeded: false, reward_id: expect.stringMatching(/^re_/) },
    });
    expect(await ask("POST", path, { ...bad, result: "ok" })).toMatchObject({ body: { created: false } });
    await edge.post("/v1/chat/completions", token, {
      model: "m",
      messages: [
        {
          role: "assistant",
          content: null,
          tool_calls: [{ id: "c1", type: "function", function: { name: "memory", arguments: "{}" } }],
        },
        { role: "tool", tool_call_id: "c1", content: "ok" },
      ],
    });
    const told = { tool_call_id: "c2", tool: "search", succeeded: true };
    expect(await ask("POST", path, told, { scopes: ["agent"] })).toMatchObject({ body: { created: true } });
    const nothing = { tool_call_id: "c3", tool: "calendar", succeeded: true };
    expect(await ask("POST", path, nothing)).toMatchObject({
      status: 200,
      body: { reward_id: null, created: false, succeeded: true },
    });
    const { rewards } = await edge.admin.readRollout(id);
    expect(rewards.map(({ source, name, value }) => [source, name, value])).toEqual([
      ["air", "memory", -0.3],
      ["air", "search", 0.2],
    ]);
  });

  it("are taken from the rollout's own token, agents and trainers of its tenant, and want one way of telling", async () => {
    const [own, other] = [await edge.rollout("live"), await edge.rollout("live")];
    const path = `/v1/rollouts/${own.id}/tool-results`;
    const body = { tool_call_id: "c1", tool: "memory", succeeded: true };
    expect((await ask("POST", path, body, { token: other.token })).status).toBe(403);
    expect((await ask("POST", path, body, { scopes: ["read"] })).status).toBe(403);
    expect((await ask("POST", path, body, { scopes: ["admin"], tenantId: "other" })).status).toBe(404);
    for (const odd of [
      { ...body, result: "ok" },
      { tool_call_id: "c1", tool: "memory" },
    ]) {
      expect((await ask("POST", path, odd)).status).toBe(400);
    }
  });
});

describe("feedback", () => {
  it("by an answer's id becomes the reward of a live rollout that nobody judged", async () => {
    const { id, token } = await edge.rollout("live");
    const callId = await call(token);
    await edge.post(`/v1/rollouts/${id}/finish`, token, { result: "done" });
    const given = await ask(
      "POST",
      "/v1/feedback",
      { call_id: callId, value: 1, comment: "good" },
      { scopes: ["agent"] },
    );
    expect(given).toMatchObject({ status: 200, body: { accepted: true, reason: null } });
    expect((await edge.admin.readRollout(id)).rollout).toMatchObject({ reward: 1, disposition: null });
  });

  it("that does not count is answered with its reason", async () => {
    const { id, token } = await edge.rollout("train");
    expect(await ask("POST", "/v1/feedback", { value: 1 }, { token })).toMatchObject({
      status: 200,
      body: { accepted: false, reason: "not_eligible", reward_id: null },
    });
    const old = newId("rollout");
    await edge.store.writer.append([
      startSelfRollout({ id: old, tenantId: "default", agent: "flight", mode: "live" }, 1000, 9e12),
    ]);
    expect(await ask("POST", "/v1/feedback", { rollout_id: old, value: 1 })).toMatchObject({
      status: 200,
      body: { accepted: false, reason: "too_late", window_hours: 72, last_at: 1000 },
    });
    expect((await edge.admin.readRollout(id)).rewards).toEqual([]);
  });

  it("stays within its tenant and, with a rollout's token, within its rollout", async () => {
    const [own, other] = [await edge.rollout("live"), await edge.rollout("live")];
    const callId = await call(own.token);
    expect((await ask("POST", "/v1/feedback", { value: 1 }, { token: own.token })).body).toMatchObject({
      accepted: true,
    });
    expect((await ask("POST", "/v1/feedback", { call_id: callId, value: 1 }, { token: own.token })).status).toBe(200);
    expect((await ask("POST", "/v1/feedback", { call_id: callId, value: 1 }, { token: other.token })).status).toBe(403);
    const foreign = { scopes: ["admin"] as const, tenantId: "other" };
    expect((await ask("POST", "/v1/feedback", { rollout_id: own.id, value: 1 }, foreign)).status).toBe(404);
    expect((await ask("POST", "/v1/feedback", { call_id: callId, value: 1 }, foreign)).status).toBe(404);
    expect((await ask("POST", "/v1/feedback", { rollout_id: own.id, value: 1 }, { scopes: ["read"] })).status).toBe(
      403,
    );
    expect((await ask("POST", "/v1/feedback", { value: 1 })).status).toBe(400);
  });
});

describe("rewards", () => {
  it("cannot take the key of a signal that the edge records", async () => {
    const { id, token } = await edge.rollout("live");
    const key = `air:${id}:1:c1`;
    expect(await ask("POST", "/v1/rewards", { name: "x", value: 1, key }, { token })).toMatchObject({ status: 200 });
    const told = { tool_call_id: "c1", tool: "search", succeeded: false };
    expect(await ask("POST", `/v1/rollouts/${id}/tool-results`, told, { token })).toMatchObject({
      body: { created: true },
    });
  });

  it("are computed anew under other settings, a page at a time", async () => {
    const { id, token } = await edge.rollout("live");
    await call(token);
    await ask("POST", `/v1/rollouts/${id}/tool-results`, { tool_call_id: "c1", tool: "search", succeeded: true });
    await edge.post(`/v1/rollouts/${id}/finish`, token, { result: "done", reward: 1 });
    // search +1 of 0.5: status 0.4; r = 0.5·0.4 + 0.5·1
    expect((await edge.admin.readRollout(id)).rollout.reward).toBeCloseTo(0.7, 9);
    const page = { rollout_ids: [id], settings: { tools: { search: 1 }, alpha: 0.25 } };
    expect(await ask("POST", "/v1/rewards/recompute", { ...page, dry_run: true })).toMatchObject({
      status: 200,
      body: { scanned: 1, changed: 1, next_after: null, after: { rewarded: 1, sum: 1 } },
    });
    expect((await edge.admin.readRollout(id)).rollout.reward).toBeCloseTo(0.7, 9);
    expect(await edge.admin.recomputeRewards({ rolloutIds: [id], settings: page.settings })).toMatchObject({
      changed: 1,
    });
    expect((await edge.admin.readRollout(id)).rollout.reward).toBe(1);
    expect((await ask("POST", "/v1/rewards/recompute", page, { scopes: ["agent"] })).status).toBe(403);
    const odd = { ...page, settings: { alpha: 2 } };
    expect(await ask("POST", "/v1/rewards/recompute", odd)).toMatchObject({
      status: 400,
      body: { error: { message: expect.stringContaining("alpha") } },
    });
  });
});

describe("tasks", () => {
  it("take an evaluator as their judge, and refuse one that could not judge", async () => {
    const task = { id: newId("task"), agent: "flight", split: "train", input: {} };
    const good = { type: "numeric", relative_tolerance: 0.1, expected: 12 };
    expect(await ask("POST", "/v1/tasks", { tasks: [{ ...task, judge: good }] })).toMatchObject({ status: 200 });
    expect(await ask("POST", "/v1/tasks", { tasks: [{ ...task, judge: { expected: "x" } }] })).toMatchObject({
      status: 200,
    });
    for (const judge of [
      { type: "json_schema", schema: { pattern: "(?=x)" } },
      { type: "worker" },
      { type: "worker", binding: "STORE" },
      { type: "nobody" },
      { type: "numeric", expected: 1, surprise: 2 },
    ]) {
      expect((await ask("POST", "/v1/tasks", { tasks: [{ ...task, judge }] })).status).toBe(400);
    }
  });
});

describe("subjects", () => {
  it("are deleted by an admin", async () => {
    const id = newId("rollout");
    await edge.store.writer.append([
      startSelfRollout({ id, tenantId: "default", agent: "flight", mode: "live", subjectId: "a/b@c" }, 1000, 9e12),
    ]);
    const path = `/v1/subjects/${encodeURIComponent("a/b@c")}`;
    expect((await ask("DELETE", path, undefined)).status).toBe(403);
    expect(await ask("DELETE", path, undefined, { scopes: ["admin"], tenantId: "other" })).toMatchObject({
      body: { rollouts: 0 },
    });
    expect(await edge.admin.deleteSubject("a/b@c")).toMatchObject({ subject: "a/b@c", rollouts: 1, dropped: 1 });
    expect((await edge.admin.readRollout(id)).rollout).toMatchObject({ status: "cancelled", dropReason: "deleted" });
    const said = await ask("POST", "/v1/feedback", { rollout_id: id, value: 1 });
    expect(said.body).toMatchObject({ accepted: false, reason: "deleted" });
  });
});
