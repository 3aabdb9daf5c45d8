import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { sql } from "drizzle-orm";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { edgeClient, type EdgeClient } from "#shared/client.ts";
import { newId } from "#shared/ids.ts";
import { shardOf } from "#shared/shards.ts";
import { startSelfRollout } from "#shared/store/rollouts.ts";
import { putTenant } from "#shared/store/tenants.ts";
import { SHA256, startTestEdge, type TestEdge } from "../support/edge.ts";
import { newLedger, NOTHING_WRONG, type Ledger } from "../support/ledger.ts";
import { startLoad, type Load, type Outcome } from "../support/load.ts";
import type { TestStore } from "../support/store.ts";
import { until } from "../support/until.ts";

/** Two databases behind one edge, a tenant in each: what one has the other has not, and what one suffers the other does not feel. */

const CHAT = "/v1/chat/completions";
const JUDGE = { answer_pattern: "(at once)", format_pattern: "at once: \\d+", expected: "at once" };
const IDLE_MS = 31 * 60_000;

interface Tenant {
  readonly id: string;
  readonly shard: number;
  readonly store: TestStore;
  readonly admin: EdgeClient;
  readonly token: () => Promise<string>;
}

let edge: TestEdge;
let north: Tenant;
let south: Tenant;

beforeAll(async () => {
  edge = await startTestEdge({
    shards: 2,
    sweepIntervalMs: 200,
    agents: { flight: { binding: "AGENT_FLIGHT", policy: "flight", timeout_ms: 10_000 } },
    agentEntries: { flight: join(import.meta.dirname, "dispatch/obedient-agent.ts") },
  });
  [north, south] = [await tenantOf(0, "north"), await tenantOf(1, "south")];
}, 60_000);
afterAll(() => edge.stop());

/** The first tenant of such a name that lives in the shard, with a policy of its own. */
async function tenantOf(shard: number, name: string): Promise<Tenant> {
  const ids = Array.from({ length: 100 }, (_, at) => `${name}-${at}`);
  const id = ids.find((candidate) => shardOf(candidate, { shards: 2 }) === shard) ?? "";
  const store = edge.stores[shard] ?? edge.store;
  const token = (): Promise<string> => edge.mint({ scopes: ["admin"], tenantId: id });
  const admin = edgeClient({
    get baseUrl() {
      return edge.url;
    },
    token,
  });
  await store.writer.append([putTenant({ id, name, settings: { fail_open: false }, createdAt: 1 })]);
  await admin.createPolicy({ name: "flight", artifact: "models/flight", sha256: SHA256 });
  return { id, shard, store, admin, token };
}

async function send(
  tenant: Tenant,
  method: string,
  path: string,
  body?: unknown,
): Promise<{ status: number; answer: unknown }> {
  const response = await fetch(`${edge.url}${path}`, {
    method,
    headers: { authorization: `Bearer ${await tenant.token()}`, "content-type": "application/json" },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, answer: await response.json().catch(() => undefined) };
}

const chat = (content: string): object => ({ model: "any", messages: [{ role: "user", content }] });

/** Whose rows a database has, by table; the default tenant is no party here. */
async function ownersIn({ db }: TestStore): Promise<Record<string, string[]>> {
  const tables = await db.all<{ name: string; owner: string }>(sql`
    select t.name, c.name as owner from sqlite_master t join pragma_table_info(t.name) c
    where t.type = 'table' and (c.name = 'tenant_id' or (t.name = 'tenants' and c.name = 'id'))`);
  const owners: Record<string, string[]> = {};
  for (const { name, owner } of tables) {
    const rows = await db.all<{ id: string }>(
      sql`select distinct ${sql.identifier(owner)} as id from ${sql.identifier(name)} where ${sql.identifier(owner)} <> 'default' order by 1`,
    );
    if (rows.length > 0) owners[name] = rows.map(({ id }) => id);
  }
  return owners;
}

/** One of nearly everything that a tenant can have. */
async function use(tenant: Tenant): Promise<void> {
  const { admin, id } = tenant;
  const run = newId("run");
  const ok = async (method: string, path: string, body?: unknown): Promise<void> => {
    const { status, answer } = await send(tenant, method, path, body);
    expect(status, `${method} ${path}: ${JSON.stringify(answer)}`).toBeLessThan(300);
  };
  await ok("PATCH", "/v1/tenant", { retention_days: 30 });
  await ok("PUT", "/v1/providers/upstream", { base_url: "https://example.com" });
  await ok("PUT", "/v1/agents/other", { policy: "flight" });
  await ok("PUT", "/v1/prices", { model: "flight", prompt_per_million: 1, completion_per_million: 2 });
  await ok("POST", "/v1/runs", { id: run, policy: "flight", agent: "flight", config: {} });
  await ok("POST", `/v1/runs/${run}/metrics`, { points: [{ step: 0, name: "n", value: 1 }] });
  await ok("POST", "/v1/tokens/revoke", { jti: `jti-${id}`, expires_at: Date.now() + 60_000 });
  await ok("POST", "/api/rollouts", [{ rollout_id: "agl-same", input: {} }]);
  await ok("POST", "/api/rollouts/agl-same/attempt/0/events", { event_type: "x", data: {} });
  await ok("POST", "/proxy/pause", {});
  await ok("POST", "/proxy/resume", {});
  const granted = await admin.createToken({ agent: "flight", mode: "live" });
  expect((await edge.post(CHAT, granted.token, chat(`hello from ${id}`))).status).toBe(200);
  await ok("POST", "/v1/rewards", { rollout_id: granted.rolloutId, name: "mine", value: 1 });
}

describe("two shards", () => {
  it("each have their own tenant's rows and nothing of the other's, the same ids included", async () => {
    await Promise.all([use(north), use(south)]);
    for (const { store, id } of [north, south]) {
      const owners = await ownersIn(store);
      expect(owners).toEqual(Object.fromEntries(Object.keys(owners).map((table) => [table, [id]])));
      expect(Object.keys(owners)).toEqual(
        expect.arrayContaining([
          ...["tenants", "policies", "providers", "agents", "prices", "runs", "metrics", "revoked_tokens", "rollouts"],
          ...["attempts", "calls", "usage", "rewards", "audit", "agl_rollouts", "agl_events", "agl_pauses"],
        ]),
      );
    }
  });

  it("do not mix what an isolate remembers of rollouts with one id", async () => {
    const rolloutId = newId("rollout");
    const tokens = await Promise.all(
      [north, south].map(async ({ id: tenantId, store }) => {
        const row = { id: rolloutId, tenantId, agent: "flight", mode: "train" } as const;
        await store.writer.transact(startSelfRollout(row, Date.now(), Date.now() + 600_000));
        const caps = { maxCalls: 2, maxTokens: 10_000 };
        const rollout = { rolloutId, attempt: 1, agent: "flight", mode: "train", pin: null, caps } as const;
        return edge.mint({ scopes: ["call"], tenantId, rollout });
      }),
    );
    const [ofNorth = "", ofSouth = ""] = tokens;
    const status = async (token: string): Promise<number> => (await edge.post(CHAT, token, chat("same"))).status;
    // Each spends its own caps.
    expect([await status(ofNorth), await status(ofNorth), await status(ofNorth)]).toEqual([200, 200, 403]);
    expect(await status(ofSouth)).toBe(200);
    await north.admin.cancelRollout(rolloutId);
    expect(await status(ofSouth)).toBe(200);
    const calls = async ({ store }: Tenant): Promise<number> =>
      (await store.db.get<{ n: number }>(sql`select count(*) as n from calls where rollout_id = ${rolloutId}`)).n;
    expect([await calls(north), await calls(south)]).toEqual([2, 2]);
  });

  it("each have keys that are looked up where they are, work, and end there", async () => {
    const keySchema = z.object({ id: z.string(), key: z.string() });
    for (const tenant of [north, south]) {
      const { id, key } = keySchema.parse((await send(tenant, "POST", "/v1/keys", { scope: "admin" })).answer);
      expect(id).toMatch(tenant.shard === 0 ? /^[0-9a-f]{16}$/ : /^1-[0-9a-f]{16}$/);
      const session = `session of ${tenant.id}`;
      const called = await fetch(`${edge.url}${CHAT}`, {
        method: "POST",
        headers: {
          "x-api-key": key,
          "content-type": "application/json",
          "x-fulgur-session": session,
          "x-fulgur-agent": "flight",
        },
        body: JSON.stringify(chat("by key")),
      });
      expect(called.status).toBe(200);
      const found = await tenant.store.db.all(
        sql`select tenant_id from rollouts where session_id = ${session} and key_id = ${id}`,
      );
      expect(found).toEqual([{ tenant_id: tenant.id }]);
      const keys = z.object({ keys: z.array(z.object({ id: z.string() })) });
      const listed = await fetch(`${edge.url}/v1/keys`, { headers: { authorization: `Bearer ${key}` } });
      expect(keys.parse(await listed.json()).keys.map((one) => one.id)).toContain(id);
      await tenant.admin.revokeKey(id);
      expect((await fetch(`${edge.url}/v1/keys`, { headers: { authorization: `Bearer ${key}` } })).status).toBe(401);
    }
  });

  it("each have a dispatcher that runs their queued rollouts, woken by the queue", async () => {
    const task = { agent: "flight", split: "train" as const, input: { behave: "answer" }, judge: JUDGE };
    for (const { admin } of [north, south]) await admin.createTasks([{ ...task, id: "same-task" }]);
    const rollout = { agent: "flight", mode: "train" as const, taskId: "same-task" };
    await Promise.all([north, south].map(({ admin }) => admin.createRollouts([{ ...rollout, id: "ro_same" }])));
    for (const { store, id } of [north, south]) {
      const ended = await until("its end", async () => {
        const [row] = await store.db.all<{ status: string; tenant_id: string; reward: number }>(
          sql`select status, tenant_id, reward from rollouts where id = 'ro_same'`,
        );
        return row?.status === "finished" && row;
      });
      expect(ended).toEqual({ status: "finished", tenant_id: id, reward: 1 });
    }
  });

  it("are both swept: leases end, what is too old goes, calls are exported to each tenant's collector", async () => {
    const collectors = await Promise.all([startCollector(), startCollector()]);
    try {
      for (const [at, tenant] of [north, south].entries()) {
        await send(tenant, "PATCH", "/v1/tenant", {
          retention_days: 1,
          otlp_export: { url: collectors[at]?.url },
        });
        const { id: tenantId, store } = tenant;
        const row = { tenantId, agent: "flight" };
        const [long, now] = [Date.now() - 3 * 86_400_000, Date.now()];
        await store.writer.append([
          startSelfRollout({ ...row, id: `ro_leased-${tenantId}`, mode: "train" }, now - IDLE_MS, now - 60_000),
          startSelfRollout({ ...row, id: `ro_old-${tenantId}`, mode: "live" }, long, long + 1000),
        ]);
      }
      for (const [at, { store, id }] of [north, south].entries()) {
        await until("the lease's end", async () => {
          const rows = await store.db.all<{ status: string }>(
            sql`select status from rollouts where id = ${`ro_leased-${id}`} and status = 'failed'`,
          );
          return rows.length === 1;
        });
        await until("the old rollout's end", async () => {
          const rows = await store.db.all(sql`select id from rollouts where id = ${`ro_old-${id}`}`);
          return rows.length === 0;
        });
        const own = await store.db.all<{ id: string }>(sql`select id from calls where tenant_id = ${id}`);
        const seen = await until("all exports", () => {
          const ids = collectors[at]?.callIds() ?? [];
          return ids.length >= own.length && ids;
        });
        expect(new Set(seen)).toEqual(new Set(own.map((call) => call.id)));
      }
    } finally {
      for (const { server } of collectors) server.close();
    }
  });

  it(
    "fail one at a time: the other tenant's calls go on, and nothing of the first's is lost",
    { timeout: 90_000 },
    async () => {
      const clients = [north, south].map((tenant) => {
        const ledger = newLedger();
        const loads = (["live", "train"] as const).map((mode) => load(tenant, mode, ledger));
        return { tenant, ledger, loads };
      });
      const [ofNorth, ofSouth] = clients;
      if (ofNorth === undefined || ofSouth === undefined) throw new Error("two were started");
      const answered = ({ loads }: (typeof clients)[number], from = 0): Outcome[] =>
        loads.flatMap(({ outcomes }) => outcomes.filter((one) => one.whole && one.startedAt >= from));
      const refused = ({ loads }: (typeof clients)[number]): Outcome[] =>
        loads.flatMap(({ outcomes }) => outcomes.filter((one) => !one.whole));
      try {
        await until("calls of both", () => clients.every((one) => answered(one).length >= 20));
        expect(await shardLines()).toEqual([
          'fulgur_shard_up{shard="0"} 1',
          'fulgur_shard_up{shard="1"} 1',
          'fulgur_shard_outbox_units{shard="0"} 0',
          'fulgur_shard_outbox_units{shard="1"} 0',
        ]);

        await south.store.kill();
        const downAt = performance.now();
        // South's live rollouts are known, so they are answered and their records wait; its train calls are told to come again.
        await until(
          "South's calls during it",
          () => refused(ofSouth).length >= 5 && answered(ofSouth, downAt).length >= 5,
        );
        await until("North's calls during it", () => answered(ofNorth, downAt).length >= 50);
        const [up, down, , waiting = ""] = await shardLines();
        expect([up, down]).toEqual(['fulgur_shard_up{shard="0"} 1', 'fulgur_shard_up{shard="1"} 0']);
        expect(Number(waiting.split(" ")[1])).toBeGreaterThan(0);
        const health = await (await fetch(`${edge.url}/healthz/shards`)).json();
        expect(health).toMatchObject({
          shards: [
            { shard: 0, up: true, outbox: 0 },
            { shard: 1, up: false },
          ],
        });
        expect((await send(north, "GET", "/v1/rollouts")).status).toBe(200);
        const asked = await send(south, "GET", "/v1/rollouts");
        expect(asked).toMatchObject({ status: 503, answer: { error: { code: "ERR_STORE" } } });
        expect((await send(north, "POST", "/v1/keys", { scope: "read" })).status).toBe(200);
        expect((await send(south, "POST", "/v1/keys", { scope: "read" })).status).toBe(503);

        await south.store.restart();
        const backAt = performance.now();
        await until("South's train calls again", () =>
          ofSouth.loads[1]?.outcomes.some(({ whole, startedAt }) => whole && startedAt >= backAt),
        );
      } finally {
        await Promise.all(clients.flatMap(({ loads }) => loads.map((one) => one.stop())));
      }
      await until("an empty outbox", async () => (await shardLines())[3] === 'fulgur_shard_outbox_units{shard="1"} 0');
      // None of North's was as much as late.
      expect(refused(ofNorth).map(({ status, code, failure }) => ({ status, code, failure }))).toEqual([]);
      expect(new Set(refused(ofSouth).map(({ status, retryAfter }) => `${status} ${retryAfter}`))).toEqual(
        new Set(["503 1"]),
      );
      for (const one of clients) {
        expect(one.ledger.acknowledged.calls).toBe(answered(one).length);
        expect(await one.ledger.audit(one.tenant.store.db)).toEqual(NOTHING_WRONG);
      }
    },
  );
});

function load({ id, admin }: Tenant, mode: "live" | "train", ledger: Ledger): Load {
  const caps = { maxCalls: 10_000, maxTokens: 1_000_000 };
  return startLoad({
    ...{ ledger, mode, url: () => edge.url, paceMs: 20, name: `${id}-${mode}` },
    token: async () => (await admin.createToken({ agent: "flight", mode, caps })).token,
  });
}

/** What `/metrics` says of each shard. */
async function shardLines(): Promise<string[]> {
  const text = await (await fetch(`${edge.url}/metrics`)).text();
  return text.split("\n").filter((line) => line.startsWith("fulgur_shard_"));
}

const exportSchema = z.object({
  resourceSpans: z.array(
    z.object({
      scopeSpans: z.array(
        z.object({
          spans: z.array(
            z.object({
              attributes: z.array(
                z.object({ key: z.string(), value: z.looseObject({ stringValue: z.string().optional() }) }),
              ),
            }),
          ),
        }),
      ),
    }),
  ),
});

/** A collector that notes the ids of the calls it was sent. */
async function startCollector(): Promise<{ server: Server; url: string; callIds: () => string[] }> {
  const ids: string[] = [];
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const { resourceSpans } = exportSchema.parse(JSON.parse(Buffer.concat(chunks).toString()));
      for (const { attributes } of resourceSpans.flatMap(({ scopeSpans }) => scopeSpans.flatMap(({ spans }) => spans)))
        ids.push(attributes.find(({ key }) => key === "gen_ai.response.id")?.value.stringValue ?? "");
      response.end("{}");
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return { server, url: `http://127.0.0.1:${port}`, callIds: () => ids };
}
