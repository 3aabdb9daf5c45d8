import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sql } from "drizzle-orm";
import { afterAll, beforeAll, expect, test } from "vitest";
import { mintToken, newSigningKey, type KeySet } from "#shared/tokens.ts";
import { startMockInference, type MockInference } from "../support/mock-inference.ts";
import { startTestStore, type TestStore } from "../support/store.ts";

/**
 * A whole run of an edge in a process of its own, good requests and bad; then everything that it said, wrote and answered is
 * looked through for the secrets that it was given.
 */

let folder: string;
let store: TestStore;
let inference: MockInference;
let edge: ChildProcess;
let url: string;
/** All of the process's output. */
let log = "";
/** All answers, with their requests' routes. */
const answers: { readonly route: string; readonly text: string }[] = [];

const keys: KeySet = { keys: [await newSigningKey()] };
const PROVIDER_KEY = "sk-provider-0123456789abcdef";
const ENV_KEY = "sk-environment-0123456789abcdef";
const VAULT_KEY = Buffer.alloc(32, 7).toString("base64url");
const PROMPT = "the-prompt-that-is-nobodys-business";
const ANSWER = "the-answer-that-is-nobodys-business";

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "fulgur-secrets-"));
  store = await startTestStore();
  inference = await startMockInference(() => ({ tokens: [ANSWER] }));
  const config = {
    port: 0,
    state_dir: folder,
    store: { url: store.url, write_token: store.keys.writeToken, read_token: store.keys.readToken },
    inference_url: inference.url,
    signing_keys: keys,
    vault_key: VAULT_KEY,
    provider_keys: { UPSTREAM_KEY: ENV_KEY },
    agents: { plain: { policy: "flight" } },
    sweep_interval_ms: 300,
  };
  edge = spawn(process.execPath, [join(import.meta.dirname, "../../cli/parts/edge-host.ts")], {
    env: { ...process.env, FULGUR_EDGE_CONFIG: JSON.stringify(config) },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const ready = Promise.withResolvers<string>();
  for (const stream of [edge.stdout, edge.stderr]) {
    stream?.on("data", (piece: Buffer) => {
      log += piece.toString();
      const address = /edge listening on (http:\S+)/.exec(log)?.[1];
      if (address !== undefined) ready.resolve(address);
    });
  }
  edge.once("exit", (code) => ready.reject(new Error(`the edge ended with ${code}: ${log}`)));
  url = await ready.promise;
}, 60_000);
afterAll(async () => {
  if (edge.exitCode === null) {
    edge.kill("SIGTERM");
    await once(edge, "exit");
  }
  await inference.stop();
  await store.stop();
  await rm(folder, { recursive: true, force: true });
});

async function ask(route: string, token: string, body?: unknown): Promise<string> {
  const [method = "", path = ""] = route.split(" ");
  const response = await fetch(`${url}${path}`, {
    method,
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    ...(body === undefined ? {} : { body: typeof body === "string" ? body : JSON.stringify(body) }),
  });
  const text = await response.text();
  answers.push({ route, text });
  return text;
}

test("no secret is in a log, an error, a row or a file", { timeout: 60_000 }, async () => {
  const admin = (await mintToken(keys, { tenantId: "default", scopes: ["admin"] })).token;
  await ask("POST /v1/policies", admin, { name: "flight", artifact: "a", sha256: "0".repeat(64) });
  const { key } = JSON.parse(await ask("POST /v1/keys", admin, { scope: "agent" })) as { key: string };
  const { token } = JSON.parse(await ask("POST /v1/tokens", admin, { agent: "plain", mode: "live" })) as {
    token: string;
  };
  const expired = (await mintToken(keys, { tenantId: "default", scopes: ["admin"], now: Date.now() - 3_600_000 }))
    .token;
  const upstream = `${inference.url}/v1`;
  await ask("PUT /v1/providers/sealed", admin, { base_url: upstream, key: PROVIDER_KEY, key_env: "MY_KEY" });
  await ask("PUT /v1/providers/lent", admin, { base_url: upstream, key_env: "UPSTREAM_KEY" });
  await ask("PUT /v1/providers/away", admin, { base_url: "http://127.0.0.1:9/v1", key: PROVIDER_KEY });
  await ask("POST /v1/agents/plain/models", admin, {
    models: { sealed: "provider:sealed/m", lent: "provider:lent/m", away: "provider:away/m" },
  });
  const call = (model: string, more: object = {}): object => ({
    model,
    messages: [{ role: "user", content: PROMPT }],
    ...more,
  });

  for (const shown of [
    admin,
    key,
    token,
    expired,
    `${token}x`,
    `${key}x`,
    key.slice(0, -1),
    `Bearer ${key}`,
    `x${key}`,
  ]) {
    for (const route of ["GET /v1/models", "GET /v1/policies", "GET /v1/keys", "GET /v1/providers", "GET /v1/audit"]) {
      await ask(route, shown);
    }
    await ask("POST /v1/tokens", shown, { scopes: ["read"], ttl_seconds: 0, token: shown });
    await ask(`GET /v1/rollouts/${shown}`, admin);
    await ask("POST /v1/rewards", shown, `{"rollout_id":"${PROMPT}`);
    for (const model of ["any", "sealed", "lent", "away", "flight@99"]) {
      await ask("POST /v1/chat/completions", shown, call(model));
    }
    await ask("POST /v1/chat/completions", shown, call("any", { stream: true }));
    await ask("POST /v1/chat/completions", shown, call("any", { temperature: PROMPT }));
    await ask("POST /v1/chat/completions", shown, `${PROMPT}{`);
  }
  for (const failing of [{ status: 500, error: "boom" }, { status: 401, error: "no" }, { drop: true }]) {
    inference.answer = () => failing;
    for (const model of ["any", "sealed", "lent"]) await ask("POST /v1/chat/completions", token, call(model));
  }
  inference.answer = () => ({ tokens: [ANSWER] });
  // Something worth a line in the log, so that its silence is no proof of nothing.
  const task = { id: "t", agent: "plain", split: "train", input: PROMPT, judge: null };
  await ask("POST /v1/tasks", admin, { tasks: [task] });
  await ask("PUT /v1/agents/gone", admin, { policy: "flight", url: "http://127.0.0.1:9/", max_attempts: 1 });
  await ask("POST /v1/tasks", admin, { tasks: [{ ...task, id: "gone", agent: "gone" }] });
  const rollout = { id: "ro_gone", task_id: "gone", agent: "gone", mode: "train", max_attempts: 1 };
  await ask("POST /v1/rollouts", admin, { rollouts: [rollout] });
  await expect.poll(() => log, { timeout: 10_000 }).toContain("attempt.broken");

  // Those that asked inference and got an answer, and those with a key that a provider took.
  expect(answers.filter(({ text }) => text.includes(ANSWER)).length).toBeGreaterThan(3);
  expect(inference.requests.length).toBeGreaterThan(10);

  edge.kill("SIGTERM");
  await once(edge, "exit");
  const rows = await everyRow();
  const files = await everyFile(folder);
  expect(rows).toContain(PROMPT);

  const { d = "" } = keys.keys[0] ?? {};
  const { writeToken, readToken } = store.keys;
  const never = {
    "the private signing key": d,
    "the vault's key": VAULT_KEY,
    "the store's tokens": writeToken,
    "the store's read token": readToken,
    "a provider's key": PROVIDER_KEY,
    "a provider's key from the environment": ENV_KEY,
    "a key's secret": key.slice(-43),
    "a token": token,
    "a token's signature": token.split(".")[2] ?? "",
    "an admin's token": admin,
    "an admin's signature": admin.split(".")[2] ?? "",
    "an expired token": expired,
  };
  for (const [what, secret] of Object.entries(never)) {
    expect(secret.length).toBeGreaterThan(20);
    expect([what, "log", log.includes(secret)]).toEqual([what, "log", false]);
    expect([what, "rows", rows.includes(secret)]).toEqual([what, "rows", false]);
    expect([what, "files", files.includes(secret)]).toEqual([what, "files", false]);
    // What made it has shown it, once.
    const shownBy = answers.filter(({ text }) => text.includes(secret)).map(({ route }) => route);
    const shownOnce =
      what === "a key's secret" ? ["POST /v1/keys"] : what.startsWith("a token") ? ["POST /v1/tokens"] : [];
    expect([what, shownBy.filter((route) => !route.includes("/v1/rollouts"))]).toEqual([what, shownOnce]);
  }
  for (const content of [PROMPT, ANSWER]) expect(log).not.toContain(content);
});

/** All rows of all tables, as text. */
async function everyRow(): Promise<string> {
  const { db } = store;
  const tables = await db.all<{ name: string }>(
    sql`select name from sqlite_master where type = 'table' and name not like 'sqlite_%'`,
  );
  const rows = await Promise.all(tables.map(({ name }) => db.all(sql.raw(`select * from "${name}"`))));
  return JSON.stringify(rows);
}

/** All that the edge wrote into its folder, the outbox among it. */
async function everyFile(root: string): Promise<string> {
  const entries = await readdir(root, { recursive: true, withFileTypes: true });
  const texts = await Promise.all(
    entries.filter((entry) => entry.isFile()).map((entry) => readFile(join(entry.parentPath, entry.name), "latin1")),
  );
  return texts.join("\n");
}
