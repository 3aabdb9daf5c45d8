import { sql } from "drizzle-orm";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { newId } from "#shared/ids.ts";
import { ROUTES } from "#shared/routes.ts";
import { putTenant } from "#shared/store/tenants.ts";
import type { Scope } from "#shared/words.ts";
import { SHA256, startTestEdge, type TestEdge } from "../support/edge.ts";
import { GOOD_BODIES, nameOf, routesOf, specOf } from "./routes.ts";
import { ask, chat, expectNoCrash, expectOf, expectRefusal } from "./support.ts";

/**
 * Tenants are walls: every route is called with everything that another tenant owns. Nothing of it is read, and nothing is
 * changed, as a dump of that tenant's rows says; then its owner makes the very same call, which must work, so that none of
 * this is refused for another reason.
 */

/** In every text that the victim owns. */
const MARK = "orchid-7f3a";

let edge: TestEdge;
let victim: string;
let mallory: string;
/** The victim's ids. */
const ids = {
  run: newId("run"),
  task: "task-of-the-victim",
  batch: newId("batch"),
  nextBatch: newId("batch"),
  live: "",
  open: "",
  grouped: ["", ""],
  spare: "",
  call: "",
  key: "",
  audit: "",
  agl: "agl-of-the-victim",
  ownRollout: "",
};
let victimRollout: { id: string; token: string };

beforeAll(async () => {
  // In one database, where nothing but the queries keeps them apart; of two, test/edge/sharding.test.ts.
  edge = await startTestEdge({ homes: { default: 0, mallory: 0 } });
  edge.inference.answer = () => ({ tokens: [MARK, " said"] });
  await edge.store.writer.append([
    putTenant({ id: "mallory", name: "Mallory", settings: { fail_open: false }, createdAt: 1 }),
  ]);
  victim = await edge.mint({ scopes: ["admin"] });
  mallory = await edge.mint({ scopes: ["admin"], tenantId: "mallory" });
  await seed();
}, 60_000);
afterAll(() => edge.stop());

async function own(route: string, body?: unknown): Promise<Record<string, unknown>> {
  const { status, text } = await ask(edge, route, { token: victim, body });
  expectOf(status, `${route}: ${text}`).toBeLessThan(300);
  return text === "" ? {} : (JSON.parse(text) as Record<string, unknown>);
}

async function seed(): Promise<void> {
  await own("PUT /v1/providers/upstream", { base_url: `https://example.com/${MARK}` });
  await own("PUT /v1/agents/secret-agent", { policy: "flight", tools: { [MARK]: 0.5 } });
  await own("PUT /v1/prices", { model: MARK, prompt_per_million: 1, completion_per_million: 2 });
  await own("PATCH /v1/tenant", { otlp_export: { url: `https://example.com/${MARK}` } });
  ids.key = String((await own("POST /v1/keys", { scope: "read", label: MARK }))["id"]);
  await own("POST /v1/tasks", {
    tasks: [{ id: ids.task, agent: "flight", split: "train", input: MARK, judge: null }],
  });
  await own("POST /v1/runs", { id: ids.run, policy: "flight", agent: "flight", config: { note: MARK } });
  await own(`POST /v1/runs/${ids.run}/metrics`, { points: [{ step: 0, name: MARK, value: 1 }] });

  const rollouts = [];
  for (let count = 0; count < 5; count++) rollouts.push(await edge.rollout("train"));
  const [first, second, third, open, spare] = rollouts;
  if (first === undefined || second === undefined || third === undefined || open === undefined || spare === undefined)
    throw new Error("rollouts are missing");
  victimRollout = first;
  ids.live = first.id;
  ids.grouped = [second.id, third.id];
  ids.open = open.id;
  ids.spare = spare.id;
  for (const { id, token } of rollouts) {
    const { status, text } = await chat(edge, token, MARK);
    expectOf(status, text).toBe(200);
    ids.call = id === first.id ? (JSON.parse(text) as { id: string }).id : ids.call;
  }
  for (const id of ids.grouped) await own(`POST /v1/rollouts/${id}/finish`, { result: MARK, reward: 1 });
  await edge.store.writer.transact([
    ...ids.grouped.map((id) => ({
      sql: "update rollouts set run_id = ?, group_id = ? where id = ?",
      args: [ids.run, "group", id],
    })),
    { sql: "update rollouts set subject_id = ? where id = ?", args: ["person-1", ids.spare] },
  ]);
  await own("POST /v1/batches/claim", { batch_id: ids.batch, run_id: ids.run, policy: "flight", step: 0, groups: 1 });
  await own("POST /v1/rewards", { rollout_id: ids.live, name: MARK, value: 1 });
  await own("POST /v1/traces", spanOf(ids.live));
  await own("POST /api/rollouts", [{ rollout_id: ids.agl, input: { text: MARK } }]);
  await own(`POST /api/rollouts/${ids.agl}/attempt/0/events`, { event_type: MARK, data: { text: MARK } });
  await own("POST /api/models", [{ model: "flight", endpoint: `https://example.com/${MARK}` }]);
  const { entries } = (await own("GET /v1/audit")) as { entries?: { id: string }[] };
  ids.audit = entries?.[0]?.id ?? "";
  expect(ids.audit).not.toBe("");
}

let spans = 0;
function spanOf(rolloutId: string): object {
  const attribute = (key: string, stringValue: string): object => ({ key, value: { stringValue } });
  const span = {
    traceId: "ab".repeat(16),
    spanId: (++spans).toString(16).padStart(16, "0"),
    name: MARK,
    startTimeUnixNano: "1795264719000000000",
    attributes: [attribute("fulgur.rollout_id", rolloutId), attribute("gen_ai.operation.name", "invoke_agent")],
  };
  return { resourceSpans: [{ scopeSpans: [{ spans: [span] }] }] };
}

function evaluationOf(rolloutId: string): object {
  const attribute = (key: string, value: object): object => ({ key, value });
  const log = {
    eventName: "gen_ai.evaluation.result",
    timeUnixNano: "1795264719000000000",
    attributes: [
      attribute("fulgur.rollout_id", { stringValue: rolloutId }),
      attribute("gen_ai.evaluation.name", { stringValue: "taste" }),
      attribute("gen_ai.evaluation.score.value", { doubleValue: 1 }),
    ],
  };
  return { resourceLogs: [{ scopeLogs: [{ logRecords: [log] }] }] };
}

/** Every row of a tenant, as texts. */
async function dump(tenantId: string): Promise<readonly string[]> {
  const rows = await edge.store.db.all<{ row: string }>(sql.raw((everything ??= await dumpQuery())(tenantId)));
  return rows.map(({ row }) => row);
}

let everything: ((tenantId: string) => string) | undefined;

/** One question about all tables, or a dump would take longer than all that it is about. */
async function dumpQuery(): Promise<(tenantId: string) => string> {
  const columns = await edge.store.db.all<{ table: string; column: string }>(
    sql`select t.name as "table", c.name as "column" from sqlite_master t join pragma_table_info(t.name) c
        where t.type = 'table' and t.name not like 'sqlite_%' order by t.name, c.cid`,
  );
  const tables = Map.groupBy(columns, ({ table }) => table);
  const owned = [...tables].flatMap(([table, fields]) => {
    const names = fields.map(({ column }) => column);
    const owner = table === "tenants" ? "id" : "tenant_id";
    if (names.includes(owner)) return [{ table, names, owner }];
    // Whatever else there is has no tenant's data.
    expect(["__drizzle_migrations", "probes", "libsql_wasm_func_table"]).toContain(table);
    return [];
  });
  expect(owned.length).toBeGreaterThan(25);
  return (tenantId) =>
    owned
      .map(({ table, names, owner }) => {
        const row = names.map((name) => `quote("${name}")`).join(` || ', ' || `);
        return `select '${table}: ' || ${row} as row from "${table}" where ${owner} = '${tenantId}'`;
      })
      .join(" union all ")
      .concat(" order by 1");
}

interface Attack {
  /** Method and path. */
  readonly route: string;
  readonly body?: unknown;
  /** What a stranger may be answered; 200 where the answer or the change is in its own place. */
  readonly stranger: number;
  /** Whether the owner's call changes rows. */
  readonly changes?: boolean;
  readonly owner?: number;
}

const attacks = (): readonly Attack[] => {
  const { run, task, batch, nextBatch, live, open, call, agl } = ids;
  const finished = ids.grouped[0] ?? "";
  const reading: readonly Attack[] = [
    ...[
      "/v1/rollouts",
      `/v1/rollouts?after=${live}`,
      `/v1/rollouts?run_id=${run}`,
      "/v1/models",
      "/v1/policies",
      "/v1/runs",
      `/v1/runs/${run}/steps`,
      "/v1/usage?rollouts=500",
      "/v1/prices",
      "/v1/tenant",
      "/v1/keys",
      "/v1/agents",
      "/v1/providers",
      "/v1/audit?limit=1000",
      `/v1/audit?before=${ids.audit}`,
      "/api/rollouts?state_in=queuing",
      "/api/rollouts/terminal",
      "/proxy/state",
    ].map((path) => ({ route: `GET ${path}`, stranger: 200 })),
    ...[
      `/v1/rollouts/${live}`,
      `/v1/rollouts/${finished}`,
      "/v1/models/flight",
      "/v1/models/flight@0",
      "/v1/agents/secret-agent",
      "/v1/providers/upstream",
      `/api/rollouts/${agl}`,
      `/api/rollouts/${agl}/events`,
      `/api/rollouts/${agl}/events?event_type=${MARK}&format=triplet`,
    ].map((path) => ({ route: `GET ${path}`, stranger: 404 })),
  ];
  const writing: readonly Attack[] = [
    { route: `POST /v1/runs/${run}/metrics`, body: { points: [{ step: 7, name: "loss", value: 2 }] }, stranger: 200 },
    { route: `POST /v1/runs/${run}/metrics`, body: { points: [{ step: 0, name: MARK, value: 3 }] }, stranger: 200 },
    { route: "POST /v1/runs", body: { id: run, policy: "p", agent: "a", config: {}, finished_at: 5 }, stranger: 200 },
    { route: "POST /v1/rewards", body: { rollout_id: live, name: "x", value: -1 }, stranger: 404 },
    { route: "POST /v1/feedback", body: { rollout_id: live, name: "f", value: -1 }, stranger: 404, changes: false },
    { route: "POST /v1/feedback", body: { call_id: call, name: "f", value: -1 }, stranger: 404, changes: false },
    {
      route: `POST /v1/rollouts/${live}/tool-results`,
      body: { tool_call_id: "call_1", tool: "memory", succeeded: false },
      stranger: 404,
    },
    { route: "POST /v1/traces", body: spanOf(live), stranger: 200 },
    { route: "POST /v1/logs", body: evaluationOf(live), stranger: 200 },
    {
      route: "POST /v1/rewards/recompute",
      body: { rollout_ids: [finished], settings: { alpha: 0 } },
      stranger: 200,
      changes: false,
    },
    { route: "POST /v1/rewards/recompute", body: { run_id: run }, stranger: 200, changes: false },
    { route: "POST /v1/rewards/recompute", body: { agent: "flight" }, stranger: 200, changes: false },
    {
      route: "POST /v1/rollouts",
      body: { rollouts: [{ id: live, task_id: task, agent: "flight", mode: "train" }] },
      stranger: 404,
      changes: false,
    },
    {
      route: "POST /v1/tasks",
      body: { tasks: [{ id: task, agent: "flight", split: "val", input: "theirs", judge: null }] },
      stranger: 200,
      changes: false,
    },
    {
      route: "POST /v1/batches/claim",
      body: { batch_id: nextBatch, run_id: run, policy: "flight", step: 1, groups: 9 },
      stranger: 409,
    },
    {
      route: "POST /v1/batches/claim",
      body: { batch_id: batch, run_id: run, policy: "flight", step: 0, groups: 9 },
      stranger: 409,
      changes: false,
    },
    { route: `POST /v1/batches/${nextBatch}/abandon`, body: { reason: "stale" }, stranger: 404 },
    {
      route: `POST /v1/batches/${batch}/trained`,
      body: { version: 1, parent_version: 0, kind: "adapter", artifact: MARK, sha256: SHA256, metrics: {} },
      stranger: 404,
    },
    { route: "POST /v1/policies/flight/retire", body: { versions: [1] }, stranger: 200 },
    { route: "POST /v1/policies/flight/route", body: { version: 1 }, stranger: 404, owner: 409, changes: false },
    {
      route: "POST /v1/policies",
      body: { name: "flight", artifact: "theirs", sha256: SHA256 },
      stranger: 200,
      changes: false,
    },
    { route: "PUT /v1/agents/secret-agent", body: { policy: "flight", alpha: 0.25 }, stranger: 200 },
    { route: "POST /v1/agents/secret-agent/models", body: { models: { m: "policy:flight" } }, stranger: 200 },
    { route: "DELETE /v1/agents/secret-agent", stranger: 200 },
    { route: "DELETE /v1/agents/secret-agent", stranger: 404, owner: 404, changes: false },
    { route: "DELETE /v1/providers/upstream", stranger: 404 },
    { route: "PUT /v1/providers/upstream", body: { base_url: "https://example.com/theirs" }, stranger: 200 },
    {
      route: "PUT /v1/prices",
      body: { model: MARK.slice(0, 6), prompt_per_million: 9, completion_per_million: 9 },
      stranger: 200,
    },
    { route: "PATCH /v1/tenant", body: { otlp_export: null, retention_days: 1 }, stranger: 200 },
    { route: `POST /v1/keys/${ids.key}/revoke`, body: {}, stranger: 404 },
    { route: "DELETE /v1/subjects/person-1", stranger: 200 },
    { route: `POST /v1/rollouts/${open}/cancel`, body: {}, stranger: 404 },
    { route: "POST /v1/rollouts/drop", body: { ids: [open], reason: "stale" }, stranger: 200, changes: false },
    { route: `POST /v1/rollouts/${live}/finish`, body: { result: "theirs", reward: -1 }, stranger: 404 },
    { route: "POST /v1/rollouts/drop", body: { ids: [live], reason: "stale" }, stranger: 200 },
    { route: "POST /api/rollouts/status", body: [agl], stranger: 404, changes: false },
    {
      route: `POST /proxy/rollout/${agl}/attempt/0/mode/train/openai/v1/chat/completions`,
      body: { model: "flight@0", messages: [{ role: "user", content: "hi" }] },
      stranger: 404,
    },
    { route: `PATCH /api/rollouts/${agl}`, body: { status: { state: "running" } }, stranger: 404 },
    {
      route: `POST /api/rollouts/${agl}/attempt/0/events`,
      body: { event_type: "reward", data: { value: -1 } },
      stranger: 404,
    },
    {
      route: "POST /api/rollouts",
      body: [{ rollout_id: agl, input: "theirs" }],
      stranger: 201,
      changes: false,
      owner: 201,
    },
    { route: `PATCH /api/rollouts/${agl}`, body: { status: { state: "failed" } }, stranger: 200 },
    { route: `DELETE /api/rollouts/${agl}`, stranger: 204, owner: 204 },
    {
      route: "POST /api/models",
      body: [{ model: "flight", endpoint: "https://example.com/theirs" }],
      stranger: 201,
      owner: 201,
    },
    { route: "DELETE /api/models", stranger: 200 },
    { route: "POST /proxy/pause", body: { reason: "theirs" }, stranger: 200 },
    { route: "POST /proxy/resume", body: {}, stranger: 200 },
  ];
  return [...reading, ...writing.map((attack) => ({ changes: true, ...attack }))];
};

/** Routes that take no id and give nothing of a tenant, and those that have a test of their own below. */
const ELSEWHERE: Readonly<Record<string, string>> = {
  "GET /healthz": "nobody's",
  "GET /healthz/shards": "nobody's",
  "GET /healthz/inference": "nobody's",
  "GET /.well-known/jwks.json": "nobody's",
  "GET /metrics": "nobody's",
  "GET /v1/session": "reads the first tenant on one machine, and is refused anywhere else (paths.test.ts)",
  "GET /openapi.json": "nobody's",
  "GET /docs": "nobody's",
  "POST /v1/tokens": "a stranger's LLM calls",
  "POST /v1/tokens/revoke": "a stranger's LLM calls",
  "POST /v1/keys": "makes something new of one's own",
  "POST /v1/chat/completions": "a stranger's LLM calls",
  "POST /v1/completions": "a stranger's LLM calls",
  "POST /v1/responses": "a stranger's LLM calls",
  "POST /v1/messages": "a stranger's LLM calls",
  "POST /v1/embeddings": "a stranger's LLM calls",
};

test("every route is attacked, or is said why not", () => {
  const attacked = routesOf(attacks().map(({ route }) => route));
  expect(new Set([...attacked, ...Object.keys(ELSEWHERE)])).toEqual(new Set(ROUTES.map(nameOf)));
  expect(Object.keys(ELSEWHERE).filter((route) => attacked.has(route))).toEqual([]);
});

test("nothing of a tenant is read or changed with its ids by another", { timeout: 90_000 }, async () => {
  for (const { route, body, stranger, changes = false, owner = 200 } of attacks()) {
    const label = `${route} ${JSON.stringify(body ?? "").slice(0, 80)}`;
    const before = await dump("default");
    const answer = await ask(edge, route, { token: mallory, body });
    expect.soft([label, answer.status], answer.text).toEqual([label, stranger]);
    expectNoCrash(answer);
    // What was asked for by name is repeated at most, never what it holds.
    if (!JSON.stringify([route, body ?? ""]).includes(MARK)) expect.soft(answer.text, label).not.toContain(MARK);
    expect.soft(await dump("default"), label).toEqual(before);

    const mine = await ask(edge, route, { token: victim, body });
    expect.soft([label, mine.status], mine.text).toEqual([label, owner]);
    const after = await dump("default");
    if (changes) expect.soft(after, `${label}: the owner's own call changed nothing`).not.toEqual(before);
  }
});

describe("a rollout's own token", () => {
  test("is for that rollout alone, of the same tenant's too", async () => {
    const mine = await edge.rollout("train");
    const other = await edge.rollout("train");
    expect((await ask(edge, `GET /v1/rollouts/${mine.id}`, { token: mine.token })).status).toBe(200);
    for (const [route, body] of [
      [`GET /v1/rollouts/${other.id}`],
      ["GET /v1/rollouts"],
      [`POST /v1/rollouts/${other.id}/finish`, { result: "x" }],
      [`POST /v1/rollouts/${other.id}/cancel`, {}],
      [`POST /v1/rollouts/${other.id}/tool-results`, { tool_call_id: "c", tool: "memory", succeeded: true }],
      ["POST /v1/rewards", { rollout_id: other.id, name: "x", value: 1 }],
      ["POST /v1/feedback", { rollout_id: other.id, value: 1 }],
      ["POST /v1/tokens", { scopes: ["admin"] }],
      ["POST /v1/tokens", { agent: "flight", mode: "train" }],
      ["POST /v1/keys", { scope: "admin" }],
      ["GET /v1/keys"],
      ["GET /v1/audit"],
      ["GET /v1/usage"],
      ["GET /v1/tenant"],
      ["GET /v1/agents"],
      ["GET /v1/providers"],
      ["DELETE /v1/subjects/x"],
      ["PATCH /v1/tenant", { fail_open: true }],
    ] as const) {
      expectRefusal(await ask(edge, route, { token: mine.token, body }), 403);
    }
    // Its telemetry is its own whatever it says.
    await ask(edge, "POST /v1/traces", { token: mine.token, body: spanOf(other.id) });
    const rows = await edge.store.db.all<{ rollout_id: string }>(
      sql`select rollout_id from spans where id like ${`%${spans.toString(16).padStart(16, "0")}`}`,
    );
    expect(rows).toEqual([{ rollout_id: mine.id }]);
  });
});

describe("a stranger's LLM calls", () => {
  test("reach no policy, provider or conversation of another tenant", async () => {
    await own("PUT /v1/providers/upstream", { base_url: `https://example.com/${MARK}` });
    const granted = await ask(edge, "POST /v1/tokens", {
      token: mallory,
      body: { agent: "flight", mode: "live", pin: "flight@1" },
    });
    expectOf(granted.status, granted.text).toBe(200);
    const { token } = JSON.parse(granted.text) as { token: string };
    const before = await dump("default");
    const pinned = await chat(edge, token);
    expectRefusal(pinned, 404);
    const continued = await ask(edge, "POST /v1/responses", {
      token,
      body: { model: "flight", input: "go on", previous_response_id: `resp_${ids.call.replace(/^[a-z]+_/, "")}` },
    });
    expectNoCrash(continued);
    expect(continued.status).toBeGreaterThanOrEqual(400);
    const mapped = await ask(edge, "POST /v1/agents/flight/models", {
      token: mallory,
      body: { models: { stolen: "provider:upstream/gpt" } },
    });
    // It has a provider of that name of its own, put there above; without it, there is none.
    expect(mapped.text).not.toContain(MARK);
    for (const answer of [pinned, continued]) expect(answer.text).not.toContain(MARK);
    expect(await dump("default")).toEqual(before);
    expect(edge.inference.requests.some((request) => JSON.stringify(request).includes("go on"))).toBe(false);
  });

  test("end no tenant's token but their own", async () => {
    const { id, token } = await edge.rollout("live");
    const claims = JSON.parse(Buffer.from(token.split(".")[1] ?? "", "base64url").toString()) as {
      jti: string;
      exp: number;
    };
    for (const body of [{ rollout_id: id }, { jti: claims.jti, expires_at: claims.exp * 1000 }]) {
      expect((await ask(edge, "POST /v1/tokens/revoke", { token: mallory, body })).status).toBe(200);
      expect((await ask(edge, "GET /v1/models", { token })).status).toBe(200);
      expect((await chat(edge, token)).status).toBe(200);
    }
    expect(victimRollout.id).toBe(ids.live);
  });
});

describe("without the right scope", () => {
  const SCOPED = ROUTES.filter(({ scopes }) => !scopes.includes("–"));
  const CALLS = [
    ...Object.keys(GOOD_BODIES),
    ...ROUTES.filter(({ method }) => method === "GET" || method === "DELETE").map(
      ({ method, path }) => `${method} ${path.replaceAll(/:\w+/g, "nobodys")}`,
    ),
  ];
  /** What each scope may besides what it is named for. */
  const HOLDS: Readonly<Record<string, readonly Scope[]>> = {
    rollout: ["call"],
    agent: ["agent"],
    trainer: ["trainer"],
    read: ["read"],
    admin: ["admin"],
  };
  const allowed = (scopes: readonly string[]): readonly Scope[] => [
    "admin",
    ...scopes.flatMap((scope) => HOLDS[scope] ?? []),
  ];

  test("every route is tried", () => {
    const tried = routesOf(CALLS);
    expect(SCOPED.map(nameOf).filter((route) => !tried.has(route))).toEqual([]);
  });

  test("every route refuses: no token with 401, a token of any other scope with 403", { timeout: 60_000 }, async () => {
    const scopes = ["read", "trainer", "agent", "call", "inference"] as const;
    const tokens = new Map<Scope, string>();
    for (const scope of scopes) tokens.set(scope, await edge.mint({ scopes: [scope] }));
    await own("POST /api/rollouts", [{ rollout_id: "agl-1", input: {} }]);
    let refused = 0;
    for (const call of CALLS) {
      const spec = specOf(call);
      if (spec === undefined || spec.scopes.includes("–")) continue;
      const body = GOOD_BODIES[call];
      const open = await ask(edge, call, { body });
      expect.soft([call, open.status], open.text).toEqual([call, 401]);
      const may = allowed(spec.scopes);
      for (const [scope, token] of tokens) {
        if (may.includes(scope) || MORE[`${nameOf(spec)} ${scope}`] !== undefined) continue;
        const answer = await ask(edge, call, { token, body });
        expect.soft([call, scope, answer.status], answer.text).toEqual([call, scope, 403]);
        refused++;
      }
    }
    expect(refused).toBeGreaterThan(100);
  });
});

/** Where a scope is not refused with 403 though its route does not name it, and why. */
const MORE: Readonly<Record<string, string>> = {
  "POST /api/rollouts/:id/attempt/:attempt/events agent": "agents tell what they do",
  "POST /proxy/rollout/:id/attempt/:attempt/mode/:mode/openai/v1/:path{.+} agent":
    "agents call with a key of their own",
  "GET /v1/models read": "names alone, to whoever has a token of the tenant",
  "GET /v1/models inference": "names alone, to whoever has a token of the tenant",
  "GET /v1/models/:id read": "names alone, to whoever has a token of the tenant",
  "GET /v1/models/:id inference": "names alone, to whoever has a token of the tenant",
};
