import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { join } from "node:path";
import type { AddressInfo } from "node:net";
import { createRemoteJWKSet, jwtVerify } from "jose";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { readCalls } from "#shared/store/calls.ts";
import { readRollouts, type Rollout } from "#shared/store/rollouts.ts";
import { startTestEdge, type TestEdge } from "../../support/edge.ts";
import { freePort } from "../../support/store.ts";
import { until } from "../../support/until.ts";

/** Agents that run somewhere else: the dispatcher calls their address as it calls a Worker. */

let edge: TestEdge;
beforeAll(async () => {
  edge = await startTestEdge();
});
afterAll(() => edge.stop());

type Handler = (request: IncomingMessage, response: ServerResponse) => Promise<void> | void;

async function serving(handle: Handler): Promise<{ server: Server; url: string }> {
  const server = createServer((request, response) => void handle(request, response));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/anywhere` };
}

/** Runs one task of an agent to its end. */
async function runOnce(agent: string): Promise<Rollout> {
  const id = newId("rollout");
  const taskId = newId("task");
  await edge.admin.createTasks([{ id: taskId, agent, split: "val", input: { say: "hello" }, judge: null }]);
  await edge.admin.createRollouts([{ id, taskId, agent, mode: "val", maxAttempts: 1 }]);
  return until(
    "the rollout's end",
    async () => {
      const [rollout] = await readRollouts(edge.store.db, "default", [id]);
      return rollout?.finishedAt !== null && rollout;
    },
    25_000,
  );
}

const textOf = async (request: IncomingMessage): Promise<string> => {
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece as Buffer);
  return Buffer.concat(pieces).toString("utf8");
};

describe("an agent at an address", () => {
  it("is asked as a Worker is, can prove the token by the edge's public keys, and calls its model with it", async () => {
    const seen: unknown[] = [];
    const { server, url } = await serving(async (request, response) => {
      const body = await textOf(request);
      const token = request.headers.authorization?.replace("Bearer ", "") ?? "";
      const jwks = createRemoteJWKSet(new URL(`${edge.url}/.well-known/jwks.json`));
      const { payload } = await jwtVerify(token, jwks, { issuer: "fulgur", audience: "fulgur-edge" });
      seen.push([request.method, request.url, JSON.parse(body), payload["rollout"]]);
      const answer = await fetch(`${String(request.headers["x-llm-base-url"])}/chat/completions`, {
        method: "POST",
        headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
        body: JSON.stringify({ model: "any", messages: [{ role: "user", content: "hi" }] }),
      });
      response.end(JSON.stringify({ result: `status ${answer.status}` }));
    });
    try {
      await edge.admin.putAgent("afar", { url, policy: "flight" });
      const rollout = await runOnce("afar");
      expect(rollout).toMatchObject({ status: "finished", error: null });
      expect(seen).toMatchObject([
        ["POST", "/anywhere", { input: { say: "hello" } }, { id: rollout.id, agent: "afar", mode: "val" }],
      ]);
    } finally {
      server.close();
    }
  });

  it("must answer itself: a redirect is not followed with the token", async () => {
    let carried = 0;
    const target = await serving((_request, response) => {
      carried++;
      response.end(JSON.stringify({ result: "stolen" }));
    });
    const { server, url } = await serving((_request, response) => {
      response.writeHead(307, { location: target.url }).end();
    });
    try {
      await edge.admin.putAgent("redirects", { url, policy: "flight" });
      expect(await runOnce("redirects")).toMatchObject({
        status: "failed",
        dropReason: "agent_failed",
        error: expect.stringContaining("redirect (307)"),
      });
      expect(carried).toBe(0);
    } finally {
      server.close();
      target.server.close();
    }
  });

  it("may send no more than is kept", async () => {
    const { server, url } = await serving((_request, response) => {
      response.on("error", () => undefined);
      response.write('{"result": "');
      for (let n = 0; n < 40; n++) response.write("x".repeat(65_536));
      response.end('"}');
    });
    try {
      await edge.admin.putAgent("floods", { url, policy: "flight" });
      expect(await runOnce("floods")).toMatchObject({
        status: "failed",
        error: expect.stringContaining("more than 1000000 bytes"),
      });
    } finally {
      server.close();
    }
  });

  it("that is nowhere fails in a sentence", async () => {
    await edge.admin.putAgent("nowhere", { policy: "flight" });
    expect(await runOnce("nowhere")).toMatchObject({
      status: "failed",
      error: expect.stringContaining("neither a binding nor a url"),
    });
  });
});

const python = process.env["PYTHON"] ?? join(import.meta.dirname, "../../../.venv/bin/python");
const has = (modules: string): Promise<boolean> =>
  new Promise((resolve) => {
    const probe = spawn(python, ["-c", `import ${modules}`], { stdio: "ignore" });
    probe.once("error", () => resolve(false));
    probe.once("exit", (code) => resolve(code === 0));
  });
const hasOpenai = await has("openai");
const canVerify = hasOpenai && (await has("jwt, cryptography"));

describe.skipIf(!hasOpenai)("the Python example", () => {
  it.each([false, ...(canVerify ? [true] : [])])(
    "answers a task by way of the edge; verifying: %s",
    async (verifies) => {
      const port = await freePort();
      const script = join(import.meta.dirname, "../../../examples/python-agent/agent.py");
      const env = { ...process.env, ...(verifies ? { EDGE_URL: edge.url } : {}) };
      const child = spawn(python, [script, String(port)], { stdio: "ignore", env });
      try {
        const url = `http://127.0.0.1:${port}/`;
        await until(
          "the Python agent",
          async () =>
            fetch(url).then(
              () => true,
              () => false,
            ),
          20_000,
        );
        await edge.admin.putAgent("python", { url, policy: "flight" });
        const rollout = await runOnce("python");
        expect(rollout).toMatchObject({ error: null, status: "finished", result: "Hello world" });
        expect(await readCalls(edge.store.db, "default", [rollout.id])).toMatchObject([{ trainable: true }]);
        if (!verifies) return;
        // Anybody else's token: no answer, and no call of the model.
        const calls = edge.inference.requests.length;
        const headers = { authorization: "Bearer key-1", "x-llm-base-url": `${edge.url}/v1` };
        await expect(fetch(url, { method: "POST", headers, body: '{"input": 1}' })).rejects.toThrow(/fetch failed/);
        expect(edge.inference.requests).toHaveLength(calls);
      } finally {
        child.kill();
      }
    },
  );
});
