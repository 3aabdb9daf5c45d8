import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { networkInterfaces, tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newSigningKey } from "#shared/tokens.ts";
import { FLIGHT_AGENT } from "../../../cli/local-tasks.ts";
import { startEdge, type EdgeHostConfig } from "../../../cli/parts/edge-host.ts";

const ROOT = join(import.meta.dirname, "../../..");
let folder: string;
let config: EdgeHostConfig;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "fulgur-host-"));
  config = {
    port: 0,
    state_dir: join(folder, "state"),
    // Nothing listens there: the edge starts without its store and says so when it is needed.
    store: { url: "http://127.0.0.1:1", write_token: "w", read_token: "r" },
    inference_url: "http://127.0.0.1:1",
    signing_keys: { keys: [{ ...(await newSigningKey()) }] },
    agents: { flight: FLIGHT_AGENT },
    agent_entries: { flight: join(ROOT, "test/support/idle-agent.ts") },
    sweep_interval_ms: 0,
  };
});
afterAll(() => rm(folder, { recursive: true, force: true }));

describe("startEdge", () => {
  it("serves the page beside the interface, and the page's paths too", async () => {
    const edge = await startEdge(config);
    try {
      expect(await (await fetch(`${edge.url}/`)).text()).toContain("<title>Fulgur</title>");
      expect(await (await fetch(`${edge.url}/rollouts/ro_1`)).text()).toContain("<title>Fulgur</title>");
      expect((await fetch(`${edge.url}/app.js`)).headers.get("content-type")).toMatch("javascript");
      expect(await (await fetch(`${edge.url}/healthz`)).json()).toMatchObject({ ok: true });
    } finally {
      await edge.stop();
    }
  });

  it("listens on the loopback address only", async () => {
    const edge = await startEdge(config);
    const outer = Object.values(networkInterfaces())
      .flat()
      .find((at) => at?.family === "IPv4" && !at.internal);
    try {
      const { port } = new URL(edge.url);
      if (outer !== undefined)
        await expect(fetch(`http://${outer.address}:${port}/healthz`)).rejects.toThrow("fetch failed");
      expect((await fetch(`${edge.url}/healthz`)).status).toBe(200);
    } finally {
      await edge.stop();
    }
  });

  it("says in a sentence that its port is taken, and which field is wrong", async () => {
    const server = createServer();
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    await expect(startEdge({ ...config, port })).rejects.toMatchObject({
      code: "ERR_PORT_TAKEN",
      message: expect.stringContaining(`port ${port}`),
    });
    server.close();
    await expect(startEdge({ ...config, inference_url: "nowhere" })).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringContaining("inference_url"),
    });
    await expect(startEdge({ ...config, upstream_bases: "https://a.example.com, 10.1.2.3" })).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringContaining("UPSTREAM_BASES takes base URLs"),
    });
  });

  it("answers 500 naming the variable when an agent's configuration is wrong, and never its value", async () => {
    const edge = await startEdge({ ...config, agents: { flight: { ...FLIGHT_AGENT, alpha: 7 } } });
    try {
      const response = await fetch(`${edge.url}/healthz`);
      expect(response.status).toBe(500);
      expect(await response.text()).toMatch(/AGENTS\.flight\.alpha/);
    } finally {
      await edge.stop();
    }
  });
});

describe("the program", () => {
  function started(): { child: ChildProcess; lines: AsyncIterableIterator<string> } {
    const child = spawn(process.execPath, [join(ROOT, "cli/parts/edge-host.ts")], {
      stdio: ["ignore", "pipe", "pipe"],
      env: { ...process.env, FULGUR_EDGE_CONFIG: JSON.stringify(config) },
    });
    return { child, lines: createInterface({ input: child.stdout })[Symbol.asyncIterator]() };
  }

  it("prints where it listens, answers there, and ends with code 0 on SIGTERM, its workerd with it", async () => {
    const { child, lines } = started();
    const { value: line } = (await lines.next()) as { value: string };
    const url = /^edge listening on (http:\/\/127\.0\.0\.1:\d+)$/.exec(line)?.[1] ?? "";
    expect((await fetch(`${url}/healthz`)).status).toBe(200);
    child.kill("SIGTERM");
    expect(await once(child, "exit")).toEqual([0, null]);
    await expect(fetch(`${url}/healthz`)).rejects.toThrow("fetch failed");
  });
});
