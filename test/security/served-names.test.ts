import { createServer } from "node:http";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { z } from "zod";
import { edgeClient, type EdgeClient } from "#shared/client.ts";
import { publicKeys, type KeySet } from "#shared/tokens.ts";
import { servedName } from "#shared/words.ts";
import { SHA256, startTestEdge, type TestEdge } from "../support/edge.ts";
import { startTestEndpoint, type TestEndpoint } from "../trainer/inference/endpoint.ts";
import { writeTinyAdapter, writeTinyModel } from "../trainer/inference/tiny-model.ts";
import { ask, expectOf, expectRefusal } from "./support.ts";

/**
 * Two tenants, each with versions 0 and 1 of a policy of one name, behind one edge and one inference server: each is answered
 * by its own weights, by the name that it gave them, and by no trick by the other's.
 */

const POLICY = "flight";
const TENANTS = ["default", "acme"] as const;
type Tenant = (typeof TENANTS)[number];

const answerSchema = z.looseObject({
  model: z.string(),
  choices: z.array(z.looseObject({ token_ids: z.array(z.int()), text: z.string().optional() })).length(1),
});

let endpoint: TestEndpoint;
let edge: TestEdge;
let stopKeys: () => Promise<void>;
const clients = new Map<Tenant, EdgeClient>();
const keySet: { keys: KeySet["keys"] } = { keys: [] };

beforeAll(async () => {
  const jwks = createServer((_, response) => void response.end(JSON.stringify(publicKeys(keySet))));
  await new Promise<void>((resolve) => void jwks.listen(0, "127.0.0.1", resolve));
  stopKeys = () => new Promise((resolve) => void jwks.close(() => resolve()));
  const address = jwks.address();
  const port = typeof address === "object" ? address?.port : undefined;
  endpoint = await startTestEndpoint(
    async (dir) => {
      const modelDir = join(dir, "model");
      await writeTinyModel(modelDir);
      for (const [at, name] of allNames().entries()) {
        await writeTinyAdapter(folderOf(dir, name), { name, modelDir, seed: 10 + at });
      }
    },
    { jwks: `http://127.0.0.1:${port}` },
  );
  edge = await startTestEdge({ inferenceUrl: endpoint.url, homes: { default: 0, acme: 0 } });
  keySet.keys = edge.keys.keys;
  for (const tenantId of TENANTS) {
    const client = edgeClient({ baseUrl: edge.url, token: () => edge.mint({ scopes: ["admin"], tenantId }) });
    clients.set(tenantId, client);
    const artifact = folderOf(endpoint.dir, servedName(tenantId, POLICY, 0));
    // The default tenant's policy comes with the test's edge, from nowhere; its version 1 is a version of it.
    if (tenantId !== "default") await client.createPolicy({ name: POLICY, artifact, sha256: SHA256 });
    await edge.store.writer.append([
      [0, 1].map((version) => ({
        sql: `insert into policy_versions (tenant_id, policy, version, kind, artifact, sha256, created_at)
              values (?, ?, ?, 'adapter', ?, ?, 1)
              on conflict (tenant_id, policy, version) do update set artifact = excluded.artifact, kind = excluded.kind`,
        args: [tenantId, POLICY, version, folderOf(endpoint.dir, servedName(tenantId, POLICY, version)), SHA256],
      })),
    ]);
  }
}, 60_000);
afterAll(async () => {
  await edge.stop();
  await endpoint.close();
  await stopKeys();
});

function allNames(): string[] {
  return TENANTS.flatMap((tenantId) => [0, 1].map((version) => servedName(tenantId, POLICY, version)));
}

/** Not where the server would find it by itself: it is led there by the store. */
function folderOf(dir: string, name: string): string {
  return join(dir, "versions", name);
}

function clientOf(tenantId: Tenant): EdgeClient {
  const client = clients.get(tenantId);
  if (client === undefined) throw new Error(`${tenantId} has no client`);
  return client;
}

async function rolloutOf(tenantId: Tenant): Promise<{ id: string; token: string }> {
  const granted = await clientOf(tenantId).createToken({ agent: "flight", mode: "val" });
  return { id: granted.rolloutId ?? "", token: granted.token };
}

const question = {
  messages: [{ role: "user", content: "hello" }],
  temperature: 0,
  max_tokens: 8,
  return_token_ids: true,
};

/** What the server itself answers under a name. */
async function atServer(name: string): Promise<readonly number[]> {
  const token = await edge.mint({ scopes: ["inference"], tenantId: "edge" });
  const response = await fetch(`${endpoint.url}/v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${token}` },
    body: JSON.stringify({ ...question, model: name }),
  });
  return answerSchema.parse(await response.json()).choices[0]?.token_ids ?? [];
}

describe("two tenants with a policy of one name", () => {
  test("are each answered by their own weights, under the name that they know", async () => {
    const answers = new Map<string, readonly number[]>();
    for (const tenantId of TENANTS) {
      for (const version of [0, 1]) {
        const model = `${POLICY}@${version}`;
        const { id, token } = await rolloutOf(tenantId);
        const { status, text } = await ask(edge, "POST /v1/chat/completions", { token, body: { ...question, model } });
        expectOf(status, text).toBe(200);
        expect(text).not.toContain("acme~");
        const answer = answerSchema.parse(JSON.parse(text));
        expect(answer.model).toBe(model);
        answers.set(servedName(tenantId, POLICY, version), answer.choices[0]?.token_ids ?? []);

        const { calls } = await clientOf(tenantId).readRollout(id);
        expect(calls).toMatchObject([{ version: model, modelAsked: model, httpStatus: 200, error: null }]);
        const rows = await edge.store.db.all<{ answered: string }>(
          `select model_answered as answered from calls where rollout_id = '${id}'`,
        );
        expect(rows).toEqual([{ answered: model }]);
      }
    }
    for (const [name, ids] of answers) expect(await atServer(name)).toEqual(ids);
    // The weights differ, so this is no accident.
    expect(new Set([...answers.values()].map(String)).size).toBe(4);
  });

  test("meter and list what is theirs by their own names", async () => {
    for (const tenantId of TENANTS) {
      const { token } = await rolloutOf(tenantId);
      expect(
        (await ask(edge, "POST /v1/chat/completions", { token, body: { ...question, model: POLICY } })).status,
      ).toBe(200);
      const usage = JSON.stringify(await clientOf(tenantId).readUsage());
      expect(usage).toContain(`"${POLICY}@0"`);
      expect(usage).not.toContain("acme~");
      const { status, text } = await ask(edge, "GET /v1/models", { token });
      expectOf(status, text).toBe(200);
      expect(text).toContain(`"${POLICY}@0"`);
      expect(text).not.toContain("acme~");
    }
  });

  test("are answered in streams and in the other dialects under their own names too", async () => {
    const { token } = await rolloutOf("acme");
    const asked: readonly (readonly [string, object])[] = [
      ["POST /v1/chat/completions", { ...question, stream: true }],
      ["POST /v1/completions", { prompt: "hello", max_tokens: 4 }],
      ["POST /v1/responses", { input: "hello", max_output_tokens: 4 }],
      ["POST /v1/messages", { messages: question.messages, max_tokens: 4 }],
      ["POST /v1/messages", { messages: question.messages, max_tokens: 4, stream: true }],
    ];
    for (const [route, body] of asked) {
      const { status, text } = await ask(edge, route, { token, body: { ...body, model: `${POLICY}@1` } });
      expectOf(status, `${route}: ${text}`).toBe(200);
      expect(text).toContain(`"model":"${POLICY}@1"`);
      expect(text).not.toContain("acme~");
    }
  });

  test("are answered under Agent Lightning's routes by their own weights", async () => {
    const token = await edge.mint({ scopes: ["admin"], tenantId: "acme" });
    const made = await ask(edge, "POST /api/rollouts", { token, body: [{ rollout_id: "agl-1", input: {} }] });
    expectOf(made.status, made.text).toBe(201);
    const path = "/proxy/rollout/agl-1/attempt/0/mode/val/openai/v1/chat/completions";
    const body = { ...question, model: `${POLICY}@1` };
    const { status, text } = await ask(edge, `POST ${path}`, { token, body });
    expectOf(status, text).toBe(200);
    expect(text).not.toContain("acme~");
    const { text: events } = await ask(edge, "GET /api/rollouts/agl-1/events", { token });
    expect(events).toContain(`"model":"${POLICY}@1"`);
    expect(events).not.toContain("acme~");
  });
});

describe("a tenant cannot reach another's version", () => {
  test.each(["acme~flight@0", "default~flight@0", "~flight@0", "acme~flight", "../acme~flight@0"])(
    "by asking for %s",
    async (model) => {
      const isName = /^acme~flight@0$/.test(model);
      for (const tenantId of TENANTS) {
        const { id, token } = await rolloutOf(tenantId);
        const answer = await ask(edge, "POST /v1/chat/completions", { token, body: { ...question, model } });
        const { calls } = await clientOf(tenantId).readRollout(id);
        if (isName) {
          expectRefusal(answer, 404);
          expect(answer.text).toContain('"model_not_found"');
          expect(calls).toEqual([]);
          continue;
        }
        // Any other name is one that the agent's map leads to its own policy.
        expectOf(answer.status, answer.text).toBe(200);
        expect(calls).toMatchObject([{ version: `${POLICY}@0` }]);
        const ids = answerSchema.parse(JSON.parse(answer.text)).choices[0]?.token_ids;
        expect(ids).toEqual(await atServer(servedName(tenantId, POLICY, 0)));
      }
    },
  );

  test("by a pin, a policy's name or a route of that form", async () => {
    const token = await edge.mint({ scopes: ["admin"], tenantId: "default" });
    const asked: readonly (readonly [string, object, number])[] = [
      ["POST /v1/tokens", { agent: "flight", mode: "val", pin: "acme~flight@0" }, 400],
      ["POST /v1/policies", { name: "acme~flight", artifact: "x", sha256: SHA256 }, 400],
      ["PUT /v1/policies/acme~flight/route", { version: 0 }, 404],
    ];
    for (const [route, body, status] of asked) {
      const answer = await ask(edge, route, { token, body });
      expectRefusal(answer, status);
      expect(answer.text).not.toContain(endpoint.dir);
    }
  });

  test("by registering the other's folder as a version of its own", async () => {
    const artifact = folderOf(endpoint.dir, servedName("default", POLICY, 0));
    await clientOf("acme").createPolicy({ name: "stolen", artifact, sha256: SHA256 });
    const { token } = await rolloutOf("acme");
    const answer = await ask(edge, "POST /v1/chat/completions", { token, body: { ...question, model: "stolen@0" } });
    expectRefusal(answer, 502);
    // In the tenant's own words, though inference has said it in its own.
    expect(answer.text).toContain('\\"stolen@0\\"');
    expect(answer.text).not.toContain("acme~");
  });
});
