import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { listAudit } from "#shared/store/audit.ts";
import { findKey } from "#shared/store/keys.ts";
import { listProviders } from "#shared/store/providers.ts";
import { putTenant } from "#shared/store/tenants.ts";
import type { Scope } from "#shared/words.ts";
import { SHA256, startTestEdge, type TestEdge } from "../../support/edge.ts";

/** `/v1/keys`, `/v1/providers`, `/v1/agents`, `/v1/audit`, and what is revoked at `/v1/tokens`. */

let edge: TestEdge;
beforeAll(async () => {
  edge = await startTestEdge();
  await edge.store.writer.append([
    putTenant({ id: "other", name: "Other", settings: { fail_open: false }, createdAt: 1 }),
  ]);
});
afterAll(() => edge.stop());

interface Answer {
  readonly status: number;
  readonly body: unknown;
}

async function ask(
  method: string,
  path: string,
  options: { scopes?: readonly Scope[]; tenantId?: string; body?: unknown; token?: string } = {},
): Promise<Answer> {
  const { scopes = ["admin"], tenantId = "default", body } = options;
  const token = options.token ?? (await edge.mint({ scopes, tenantId }));
  const response = await fetch(`${edge.url}${path}`, {
    method,
    headers: { authorization: `Bearer ${token}` },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: await response.json() };
}

/** What the audit has of a target, oldest first. */
async function deeds(target: string): Promise<string[]> {
  const entries = await listAudit(edge.store.db, "default", { limit: 500 });
  return entries
    .filter((entry) => entry.target === target)
    .map(({ action }) => action)
    .reverse();
}

const granted = z.object({ id: z.string(), key: z.string() });

describe("scopes", () => {
  it.each([
    ["POST", "/v1/keys", "trainer"],
    ["GET", "/v1/keys", "trainer"],
    ["POST", "/v1/keys/0/revoke", "trainer"],
    ["GET", "/v1/providers", "call"],
    ["GET", "/v1/providers/openai", "agent"],
    ["PUT", "/v1/providers/openai", "trainer"],
    ["DELETE", "/v1/providers/openai", "trainer"],
    ["GET", "/v1/agents", "call"],
    ["GET", "/v1/agents/flight", "agent"],
    ["PUT", "/v1/agents/flight", "trainer"],
    ["POST", "/v1/agents/flight/models", "trainer"],
    ["DELETE", "/v1/agents/flight", "trainer"],
    ["GET", "/v1/audit", "read"],
  ] as const)("%s %s refuses scope %s", async (method, path, scope) => {
    const body = method === "GET" || method === "DELETE" ? undefined : {};
    expect(await ask(method, path, { scopes: [scope], body })).toMatchObject({
      status: 403,
      body: { error: { code: "ERR_FORBIDDEN" } },
    });
  });
});

describe("keys", () => {
  it("are shown once, kept as a hash, listed without it, and revoked once", async () => {
    const made = await ask("POST", "/v1/keys", { body: { scope: "agent", agent: "flight", label: "laptop" } });
    expect(made).toMatchObject({ status: 200, body: { scope: "agent", agent: "flight", rate_per_minute: null } });
    const { id, key } = granted.parse(made.body);
    expect(key).toMatch(new RegExp(`^fk_${id}_[\\w-]{43}$`));
    const kept = await findKey(edge.store.db, id);
    expect(kept).toMatchObject({ tenantId: "default", hash: expect.stringMatching(/^[0-9a-f]{64}$/) });
    expect(JSON.stringify(kept)).not.toContain(key.slice(20));

    const listed = await ask("GET", "/v1/keys");
    expect(listed.body).toMatchObject({ keys: [{ id, label: "laptop", revoked_at: null }] });
    expect(JSON.stringify(listed.body)).not.toContain("hash");

    expect(await ask("POST", `/v1/keys/${id}/revoke`, { body: {} })).toMatchObject({ status: 200 });
    expect(await ask("POST", `/v1/keys/fk_${id}/revoke`, { body: {} })).toMatchObject({ status: 200 });
    expect((await findKey(edge.store.db, id))?.revokedAt).toBeTypeOf("number");
    expect(await deeds(id)).toEqual(["key.created", "key.revoked"]);
  });

  it("work wherever a token does, with what their scope allows, until they are revoked", async () => {
    const make = async (body: object): Promise<{ id: string; key: string }> =>
      granted.parse((await ask("POST", "/v1/keys", { body })).body);
    const [admin, trainer, agent, read] = [
      await make({ scope: "admin" }),
      await make({ scope: "trainer" }),
      await make({ scope: "agent", agent: "flight" }),
      await make({ scope: "read" }),
    ];
    const status = async (method: string, path: string, token: string, body?: unknown): Promise<number> =>
      (await ask(method, path, { token, body })).status;
    expect(await status("GET", "/v1/keys", admin.key)).toBe(200);
    expect(await status("GET", "/v1/keys", trainer.key)).toBe(403);
    expect(await status("GET", "/v1/rollouts", trainer.key)).toBe(200);
    expect(await status("POST", "/v1/tasks", trainer.key, { tasks: [] })).toBe(400);
    expect(await status("POST", "/v1/tasks", read.key, { tasks: [] })).toBe(403);
    expect(await status("GET", "/v1/rollouts", read.key)).toBe(200);
    expect(await status("GET", "/v1/rollouts", agent.key)).toBe(403);
    expect(await status("POST", "/v1/tokens", agent.key, { agent: "flight", mode: "live" })).toBe(200);
    expect(await status("POST", "/v1/tokens", agent.key, { agent: "flight", mode: "train" })).toBe(403);
    expect(await status("POST", "/v1/tokens", agent.key, { scopes: ["admin"] })).toBe(403);
    const anthropic = await fetch(`${edge.url}/v1/rollouts`, { headers: { "x-api-key": read.key } });
    expect(anthropic.status).toBe(200);

    const newest = (await listAudit(edge.store.db, "default")).find(({ action }) => action === "token.minted");
    expect(newest?.actor).toBe(`key:${agent.id}`);
    expect(await status("POST", `/v1/keys/${read.id}/revoke`, admin.key, {})).toBe(200);
    expect(await status("GET", "/v1/rollouts", read.key)).toBe(401);
    expect(await status("GET", "/v1/rollouts", `${admin.key.slice(0, -1)}!`)).toBe(401);
  });

  it("are held to their rate, and told when to come back", async () => {
    const { key } = granted.parse(
      (await ask("POST", "/v1/keys", { body: { scope: "read", rate_per_minute: 2 } })).body,
    );
    const get = (): Promise<Response> =>
      fetch(`${edge.url}/v1/rollouts`, { headers: { authorization: `Bearer ${key}` } });
    expect([(await get()).status, (await get()).status]).toEqual([200, 200]);
    const third = await get();
    expect(third.status).toBe(429);
    expect(Number(third.headers.get("retry-after"))).toBeGreaterThan(20);
  });

  it("of one tenant are nothing to another", async () => {
    const { id } = granted.parse((await ask("POST", "/v1/keys", { body: { scope: "read" } })).body);
    const foreign = { tenantId: "other" };
    expect(await ask("POST", `/v1/keys/${id}/revoke`, { ...foreign, body: {} })).toMatchObject({ status: 404 });
    expect((await ask("GET", "/v1/keys", foreign)).body).toEqual({ keys: [] });
    expect((await findKey(edge.store.db, id))?.revokedAt).toBeNull();
    expect((await ask("GET", "/v1/audit", foreign)).body).toEqual({ entries: [], next_before: null });
  });
});

describe("providers", () => {
  it("keep their key sealed, and nobody is shown it", async () => {
    const put = await ask("PUT", "/v1/providers/openai", {
      body: { base_url: "https://api.example.com/v1/", key: "sk-very-secret", key_env: "OPENAI_API_KEY" },
    });
    expect(put).toMatchObject({
      status: 200,
      body: { name: "openai", base_url: "https://api.example.com/v1", key: "sealed", key_env: "OPENAI_API_KEY" },
    });
    const [kept] = await listProviders(edge.store.db, "default");
    expect(kept?.keySealed).toMatch(/^v1\./);
    const shown = JSON.stringify([
      put,
      kept,
      await ask("GET", "/v1/providers"),
      await ask("GET", "/v1/providers/openai"),
      await ask("GET", "/v1/audit"),
    ]);
    expect(shown).not.toContain("sk-very-secret");
    expect(JSON.stringify(await ask("GET", "/v1/providers"))).not.toContain(kept?.keySealed);
    expect((await ask("GET", "/v1/providers", { tenantId: "other" })).body).toEqual({ providers: [] });

    expect(await ask("DELETE", "/v1/providers/openai")).toMatchObject({ status: 200 });
    expect(await ask("DELETE", "/v1/providers/openai")).toMatchObject({ status: 404 });
    expect(await deeds("openai")).toEqual(["provider.put", "provider.deleted"]);
  });

  it.each([
    ["http elsewhere", "http://api.example.com/v1", "https"],
    ["credentials", "https://user:hunter2@api.example.com/v1", "credentials"],
    ["a query", "https://api.example.com/v1?x=1", "query"],
    ["a private number", "https://10.0.0.8/v1", "not a public address"],
    ["the metadata service in odd notation", "https://0xa9fea9fe/latest", "not a public address"],
    ["another scheme", "file:///etc/passwd", "https"],
    ["no URL", "openai", "not a URL"],
  ])("refuse an address with %s, without repeating a secret", async (_what, baseUrl, named) => {
    const { status, body } = await ask("PUT", "/v1/providers/odd", { body: { base_url: baseUrl } });
    expect({ status, body }).toMatchObject({
      status: 400,
      body: { error: { message: expect.stringContaining(named) } },
    });
    expect(JSON.stringify(body)).not.toContain("hunter2");
  });

  it("may be on loopback here, and may not take the edge's own secrets as their key", async () => {
    expect(await ask("PUT", "/v1/providers/local", { body: { base_url: "http://127.0.0.1:9/v1" } })).toMatchObject({
      status: 200,
      body: { key: "none" },
    });
    const stolen = { base_url: "https://evil.example.com", key_env: "SIGNING_KEYS" };
    expect(await ask("PUT", "/v1/providers/evil", { body: stolen })).toMatchObject({
      status: 400,
      body: { error: { code: "ERR_INVALID_REQUEST", message: expect.stringContaining("SIGNING_KEYS") } },
    });
  });
});

describe("agents", () => {
  it("are made by mapping a model, keep their other models, and are the tenant's alone", async () => {
    await ask("PUT", "/v1/providers/frozen", { body: { base_url: "https://api.example.com" } });
    const map = (models: object): Promise<Answer> => ask("POST", "/v1/agents/support/models", { body: { models } });
    expect(await map({ "*": "policy:flight" })).toMatchObject({ status: 200, body: { source: "stored" } });
    expect(await map({ "gpt-5": "provider:frozen/gpt-5" })).toMatchObject({
      status: 200,
      body: { settings: { models: { "*": "policy:flight", "gpt-5": "provider:frozen/gpt-5" } } },
    });
    expect((await ask("GET", "/v1/agents/support")).body).toMatchObject({
      settings: { models: { "*": "policy:flight", "gpt-5": "provider:frozen/gpt-5" } },
    });
    expect((await ask("GET", "/v1/agents", { tenantId: "other" })).body).toMatchObject({
      agents: [{ name: "flight", source: "deployed" }],
    });
    const token = { agent: "support", mode: "live" };
    expect(await ask("POST", "/v1/tokens", { body: token })).toMatchObject({ status: 200 });
    expect(await ask("POST", "/v1/tokens", { body: token, tenantId: "other" })).toMatchObject({ status: 400 });

    expect(await ask("DELETE", "/v1/providers/frozen")).toMatchObject({
      status: 409,
      body: { error: { message: expect.stringContaining("support") } },
    });
    expect(await ask("DELETE", "/v1/agents/support")).toMatchObject({ status: 200 });
    expect(await ask("DELETE", "/v1/agents/support")).toMatchObject({ status: 404 });
    expect(await ask("DELETE", "/v1/providers/frozen")).toMatchObject({ status: 200 });
    expect(await deeds("support")).toEqual(["agent.put", "agent.put", "agent.deleted"]);
  });

  it("keep two mappings that are made at once", async () => {
    const names = Array.from({ length: 8 }, (_, at) => `m${at}`);
    await Promise.all(
      names.map((name) => ask("POST", "/v1/agents/busy/models", { body: { models: { [name]: "policy:flight" } } })),
    );
    const { body } = await ask("GET", "/v1/agents/busy");
    expect(
      Object.keys(z.object({ settings: z.object({ models: z.looseObject({}) }) }).parse(body).settings.models).sort(),
    ).toEqual(names);
  });

  it("deployed with the edge can be laid over, and come back when that is deleted", async () => {
    expect(await ask("PUT", "/v1/agents/flight", { body: { timeout_ms: 5000 } })).toMatchObject({
      body: {
        source: "both",
        settings: { binding: "AGENT_FLIGHT", timeout_ms: 5000, models: { "*": "policy:flight" } },
      },
    });
    expect(await ask("DELETE", "/v1/agents/flight")).toMatchObject({ status: 200 });
    expect(await ask("DELETE", "/v1/agents/flight")).toMatchObject({ status: 409 });
  });

  it.each([
    ["a target of no known form", { models: { x: "flight" } }, 400, "policy:NAME"],
    ["a provider that is not there", { models: { x: "provider:nobody/m" } }, 404, "nobody"],
    ["an address that is not public", { url: "https://192.168.1.1/run" }, 400, "not a public address"],
    ["both places at once", { url: "https://a.example.com", binding: "AGENT_X" }, 400, "not both"],
    ["a field of no known name", { colour: "red" }, 400, "colour"],
  ])("refuse %s", async (_what, body, status, named) => {
    expect(await ask("PUT", "/v1/agents/odd", { body })).toMatchObject({
      status,
      body: { error: { message: expect.stringContaining(named) } },
    });
  });
});

describe("tokens and policies in the audit", () => {
  it("tell who minted, revoked, registered and routed, and leave no row for what was refused", async () => {
    await edge.admin.createPolicy({ name: "audited", artifact: "a", sha256: SHA256 });
    await edge.admin.createPolicy({ name: "audited", artifact: "a", sha256: SHA256 });
    await edge.admin.routePolicy("audited", 0);
    await expect(edge.admin.routePolicy("audited", 9)).rejects.toMatchObject({ code: "ERR_NOT_FOUND" });
    expect(await deeds("audited")).toEqual(["policy.registered", "policy.routed"]);

    const { id } = await edge.rollout("live");
    const minted = (await listAudit(edge.store.db, "default")).find(({ action }) => action === "token.minted");
    expect(minted).toMatchObject({
      actor: expect.stringMatching(/^token:[0-9a-f-]{36}$/),
      detail: { rollout_id: id, agent: "flight", mode: "live" },
    });
  });

  it("tell of a rollout that is deleted, once", async () => {
    const rollouts = [{ rollout_id: "ar-audited", data_id: "d1", input: {} }];
    expect(await ask("POST", "/api/rollouts", { body: rollouts })).toMatchObject({ status: 201 });
    const bearer = { authorization: `Bearer ${await edge.mint({ scopes: ["admin"] })}` };
    for (const _ of [1, 2]) {
      const gone = await fetch(`${edge.url}/api/rollouts/ar-audited`, { method: "DELETE", headers: bearer });
      expect(gone.status).toBe(204);
    }
    expect(await deeds("ar-audited")).toEqual(["rollout.deleted"]);
  });

  it("are given a page at a time", async () => {
    const first = z
      .object({ entries: z.array(z.object({ id: z.string() })), next_before: z.string() })
      .parse((await ask("GET", "/v1/audit?limit=2")).body);
    const second = await ask("GET", `/v1/audit?limit=2&before=${first.next_before}`);
    const ids = z.object({ entries: z.array(z.object({ id: z.string() })) }).parse(second.body).entries;
    expect(first.entries).toHaveLength(2);
    expect(ids).toHaveLength(2);
    expect(new Set([...first.entries, ...ids].map((entry) => entry.id)).size).toBe(4);
  });

  it("revoke every token of a rollout at once", async () => {
    const { id, token } = await edge.rollout("live");
    expect(await ask("GET", `/v1/rollouts/${id}`, { token })).toMatchObject({ status: 200 });
    expect(await ask("POST", "/v1/tokens/revoke", { body: { rollout_id: id } })).toMatchObject({ status: 200 });
    expect(await ask("GET", `/v1/rollouts/${id}`, { token })).toMatchObject({ status: 401 });
    expect(await deeds(id)).toEqual(["rollout.tokens_revoked"]);
  });
});
