import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import * as z from "zod";
import { mintToken, newSigningKey, publicKeys } from "../../../shared/tokens.ts";
import type { Scope } from "../../../shared/words.ts";
import { parseInferenceConfig } from "../../../trainer/inference/config.ts";
import { startInferenceServer } from "../../../trainer/inference/server.ts";
import { openTokenGate } from "../../../trainer/inference/token-gate.ts";
import { record, startTestEndpoint, type TestEndpoint } from "./endpoint.ts";
import { writeTinyModel } from "./tiny-model.ts";

type Key = Awaited<ReturnType<typeof newSigningKey>>;

const key = await newSigningKey();
const bearer = async (
  scopes: readonly Scope[],
  signing: Key = key,
  now = Date.now(),
  tenantId = "acme",
): Promise<string> => `Bearer ${(await mintToken({ keys: [signing] }, { tenantId, scopes, now })).token}`;
const bearerOf = (tenantId: string, scopes: readonly Scope[]): Promise<string> =>
  bearer(scopes, key, Date.now(), tenantId);

let dir: string;
let file: string;

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-gate-"));
  file = join(dir, "jwks.json");
  await writeFile(file, JSON.stringify(publicKeys({ keys: [key] })));
});

afterAll(() => rm(dir, { recursive: true }));

test("a token of the edge's key with the scope may pass, and so may an admin's", async () => {
  const gate = await openTokenGate(file);
  const trainer = (await bearer(["trainer"])).replace("Bearer", "bearer");
  await expect(gate.check(await bearer(["inference"]), ["inference"])).resolves.toMatchObject({ tenantId: "acme" });
  await expect(gate.check(trainer, ["inference", "trainer"])).resolves.toMatchObject({ tenantId: "acme" });
  await expect(gate.check(await bearer(["admin"]), ["trainer"])).resolves.toMatchObject({ tenantId: "acme" });
});

test("a token without the scope is forbidden; none, a foreign and an old one are no tokens", async () => {
  const gate = await openTokenGate(file);
  await expect(gate.check(await bearer(["call", "read"]), ["inference"])).rejects.toMatchObject({
    code: "ERR_FORBIDDEN",
  });
  const foreign = await newSigningKey();
  const others = [
    undefined,
    "",
    "Basic YTpi",
    "Bearer nonsense",
    await bearer(["inference"], foreign),
    await bearer(["inference"], { ...foreign, kid: key.kid ?? "" }),
    await bearer(["inference"], key, Date.now() - 3_600_000),
  ];
  for (const authorization of others) {
    await expect(gate.check(authorization, ["inference"])).rejects.toMatchObject({ code: "ERR_AUTH" });
  }
});

test("a key that appeared since is fetched once, and keys that are known outlive an outage", async () => {
  const next = await newSigningKey();
  let served = [key];
  let fetches = 0;
  let isDown = true;
  let nowMs = Date.now();
  const gate = await openTokenGate("http://edge.test/.well-known/jwks.json", {
    nowMs: () => nowMs,
    fetch: () => {
      fetches++;
      return isDown
        ? Promise.reject(new TypeError("fetch failed"))
        : Promise.resolve(Response.json(publicKeys({ keys: served })));
    },
  });
  await expect(gate.check(await bearer(["inference"]), ["inference"])).rejects.toMatchObject({ code: "ERR_STORE" });
  isDown = false;
  const crowd = await Promise.all(Array.from({ length: 8 }, () => bearer(["inference"])));
  await Promise.all(crowd.map((token) => gate.check(token, ["inference"])));
  await gate.check(await bearer(["inference"]), ["inference"]);
  expect(fetches).toBe(2);
  served = [next, key];
  // Too soon after the last time: strangers cannot make it fetch all the time.
  await expect(gate.check(await bearer(["inference"], next), ["inference"])).rejects.toMatchObject({
    code: "ERR_AUTH",
  });
  expect(fetches).toBe(2);
  nowMs += 11_000;
  // The first calls with a new key come together.
  const calls = await Promise.all(Array.from({ length: 4 }, () => bearer(["inference"], next)));
  await Promise.all(calls.map((token) => gate.check(token, ["inference"])));
  expect(fetches).toBe(3);
  isDown = true;
  nowMs += 11_000;
  await gate.check(await bearer(["inference"]), ["inference"]);
  const stranger = await bearer(["inference"], await newSigningKey());
  await expect(gate.check(stranger, ["inference"])).rejects.toMatchObject({ code: "ERR_AUTH" });
  expect(fetches).toBe(4);
});

test("a token is remembered until it expires, and no longer than the keys that it was verified with", async () => {
  const next = await newSigningKey();
  const served = { keys: [key] };
  let nowMs = Date.now();
  const gate = await openTokenGate("http://edge.test/.well-known/jwks.json", {
    nowMs: () => nowMs,
    fetch: () => Promise.resolve(Response.json(publicKeys(served))),
  });
  const token = await bearer(["inference"]);
  await gate.check(token, ["inference"]);
  // What was remembered is whose token it is, not that it may do everything.
  await expect(gate.check(token, ["trainer"])).rejects.toMatchObject({ code: "ERR_FORBIDDEN" });
  nowMs += 16 * 60_000;
  await expect(gate.check(token, ["inference"])).rejects.toThrow(/expired/);

  const young = await bearer(["inference"], key, nowMs);
  await gate.check(young, ["inference"]);
  served.keys = [next];
  nowMs += 11_000;
  await gate.check(young, ["inference"]);
  await gate.check(await bearer(["inference"], next, nowMs), ["inference"]);
  await expect(gate.check(young, ["inference"])).rejects.toMatchObject({ code: "ERR_AUTH" });
});

test("a file without keys, and an open port that others reach, are said at the start", async () => {
  const empty = join(dir, "empty.json");
  await writeFile(empty, '{"keys":[]}');
  await expect(openTokenGate(empty)).rejects.toMatchObject({ code: "ERR_CONFIG" });
  await expect(openTokenGate(join(dir, "absent.json"))).rejects.toThrow(/^--jwks: .*absent\.json holds no public keys/);
  const config = parseInferenceConfig({ model: dir, host: "0.0.0.0", port: 0 });
  await expect(startInferenceServer(config, { fatal: () => {} })).rejects.toThrow(/^--host 0\.0\.0\.0 .*--jwks none/);
});

test("a base that is served as a tenant's version is that tenant's, and by any other name everybody's", async () => {
  const endpoint = await startTestEndpoint((folder) => writeTinyModel(join(folder, "model")).then(() => {}), {
    jwks: file,
    servedModelName: "acme~flight@0",
  });
  onTestFinished(() => endpoint.close());
  const ask = async (tenantId: string): Promise<readonly [number, number]> => {
    const authorization = await bearerOf(tenantId, ["inference"]);
    const body = JSON.stringify({ model: "acme~flight@0", prompt: "hi", max_tokens: 1, ignore_eos: true });
    const answer = await fetch(`${endpoint.url}/v1/completions`, { method: "POST", headers: { authorization }, body });
    const listed = record(await (await fetch(`${endpoint.url}/v1/models`, { headers: { authorization } })).json());
    return [answer.status, z.array(z.unknown()).parse(listed["data"]).length];
  };
  expect(await ask("acme")).toEqual([200, 1]);
  expect(await ask("edge")).toEqual([200, 1]);
  expect(await ask("default")).toEqual([404, 0]);
  expect(await ask("mallory")).toEqual([404, 0]);
});

describe("an endpoint with keys", () => {
  let endpoint: TestEndpoint;
  beforeAll(async () => {
    endpoint = await startTestEndpoint((folder) => writeTinyModel(join(folder, "model")).then(() => {}), {
      jwks: file,
    });
  });
  afterAll(() => endpoint.close());

  const ask = (path: string, authorization?: string, body?: unknown): Promise<Response> =>
    fetch(`${endpoint.url}${path}`, {
      headers: authorization === undefined ? {} : { authorization },
      ...(body === undefined ? {} : { method: "POST", body: JSON.stringify(body) }),
    });

  test("answers only with a token, in the shape that the SDKs read", async () => {
    const body = { model: "base", prompt: "hi", max_tokens: 2, ignore_eos: true };
    const refused = await ask("/v1/completions", undefined, body);
    expect(refused.status).toBe(401);
    expect(refused.headers.get("www-authenticate")).toBe("Bearer");
    expect(record(record(await refused.json())["error"])).toMatchObject({
      type: "invalid_request_error",
      code: "invalid_api_key",
      param: null,
    });
    const answered = await ask("/v1/completions", await bearer(["inference"]), body);
    expect(answered.status).toBe(200);
    expect(record(await answered.json())["model"]).toBe("base");
  });

  test("lets trainers load and nobody else, and shows health to all", async () => {
    const body = { lora_name: "acme~flight@1", lora_path: "flight/1" };
    expect((await ask("/v1/load_lora_adapter", await bearer(["inference"]), body)).status).toBe(403);
    expect((await ask("/v1/unload_lora_adapter", await bearer(["inference"]), body)).status).toBe(403);
    // The folder is not there, which only one who may load is told.
    expect((await ask("/v1/load_lora_adapter", await bearer(["trainer"]), body)).status).toBe(400);
    expect((await ask("/v1/models", await bearer(["trainer"]))).status).toBe(200);
    expect((await ask("/v1/models")).status).toBe(401);
    expect((await ask("/health")).status).toBe(200);
  });

  test("keeps each tenant to its own versions, whatever its tokens may do, and the edge to none", async () => {
    await writeTinyModel(join(endpoint.dir, "other"), { seed: 2 });
    const load = async (tenantId: string, name: string): Promise<number> =>
      (
        await ask("/v1/load_lora_adapter", await bearerOf(tenantId, ["admin"]), {
          lora_name: name,
          lora_path: join(endpoint.dir, "other"),
        })
      ).status;
    expect([await load("mallory", "acme~flight@1"), await load("mallory", "flight@1")]).toEqual([404, 404]);
    expect([await load("default", "flight@1"), await load("acme", "acme~flight@1")]).toEqual([200, 200]);

    const prompt = { prompt: "hi", max_tokens: 1, ignore_eos: true };
    const answer = async (tenantId: string, model: string): Promise<number> =>
      (await ask("/v1/completions", await bearerOf(tenantId, ["inference"]), { model, ...prompt })).status;
    const chat = async (tenantId: string, model: string): Promise<number> => {
      const body = { model, messages: [{ role: "user", content: "hi" }], max_tokens: 1 };
      return (await ask("/v1/chat/completions", await bearerOf(tenantId, ["inference"]), body)).status;
    };
    const names = ["base", "flight@1", "acme~flight@1"];
    const statuses = {
      mallory: [200, 404, 404],
      acme: [200, 404, 200],
      default: [200, 200, 404],
      edge: [200, 200, 200],
    };
    for (const [tenantId, expected] of Object.entries(statuses)) {
      for (const ways of [answer, chat]) {
        expect(await Promise.all(names.map((name) => ways(tenantId, name)))).toEqual(expected);
      }
      const listed = record(await (await ask("/v1/models", await bearerOf(tenantId, ["trainer"]))).json());
      const seen = z.array(z.looseObject({ id: z.string() })).parse(listed["data"]);
      expect(seen.map(({ id }) => id)).toEqual(names.filter((_, at) => expected[at] === 200));
    }

    const unload = async (tenantId: string): Promise<number> =>
      (await ask("/v1/unload_lora_adapter", await bearerOf(tenantId, ["trainer"]), { lora_name: "acme~flight@1" }))
        .status;
    expect([await unload("mallory"), await unload("default"), await unload("acme")]).toEqual([404, 404, 200]);
  });
});
