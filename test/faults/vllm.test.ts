import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { findVllm, INSTALL_VLLM } from "../../bench/decode-parts/servers.ts";
import { builtInServer, vllmServer, type ServerProcess } from "../support/server-process.ts";
import { freePort } from "../support/store.ts";
import { until } from "../support/until.ts";
import { expectTrueAnswers, MODEL, startFleetWorld, type FleetWorld } from "./fleet-rounds.ts";

/**
 * A real vLLM server beside the built-in endpoint, behind an edge and under load: published to, drained, killed with -9,
 * and brought back without its adapters.
 */

const vllm = findVllm();

describe.skipIf(vllm === null)(`a fleet with vLLM (${INSTALL_VLLM} installs it, or VLLM names its command)`, () => {
  let server: ServerProcess;
  let other: ServerProcess;
  let world: FleetWorld;
  beforeAll(async () => {
    server = await vllmServer(vllm ?? "", MODEL, await freePort());
    other = await builtInServer(MODEL, await freePort());
    world = await startFleetWorld([server, other]);
  }, 300_000);
  afterAll(async () => {
    await world.stop();
    await Promise.all([server.stop(), other.stop()]);
  });

  it("publishes to both, and unloads what its last request has left", { timeout: 120_000 }, async () => {
    for (const version of [1, 2, 3]) {
      await world.publish(version);
      await world.answeredBy(version, 30);
    }
    const loaded = await world.loadedAt(server);
    expect([...loaded]).toEqual(expect.arrayContaining(["base", "flight@2", "flight@3"]));
    expect(loaded.has("flight@1")).toBe(false);
    expect(await sampled(server)).toBeGreaterThan(0);
    expect(world.warned).toEqual([]);
  });

  it("has vLLM load a version that it lacks, for whoever asks for it by name", { timeout: 60_000 }, async () => {
    expect(new Set(await world.askFor(1, 8))).toEqual(new Set([200]));
    expect(await world.loadedAt(server)).toContain("flight@1");
  });

  it("goes on while vLLM is gone, and publishes without it", { timeout: 120_000 }, async () => {
    await server.kill();
    await world.answeredBy(3, 20);
    await until("the edge takes it out of service", async () => !(await world.inService(0)));
    await world.publish(4);
    expect(world.warned).toEqual([expect.stringContaining(`${server.url} is out of service`)]);
    await world.answeredBy(4, 20);
  });

  it(
    "has vLLM, back without its adapters, load what is routed, and sends it calls again",
    { timeout: 400_000 },
    async () => {
      await server.restart();
      await until("the edge takes it back", () => world.inService(0));
      expect(await world.loadedAt(server)).toContain("flight@4");
      await until("it samples", async () => (await sampled(server)) > 0);
      await world.publish(5);
      await world.answeredBy(5, 30);
      expect([...(await world.loadedAt(server))]).toEqual(expect.arrayContaining(["flight@4", "flight@5"]));
    },
  );

  it("has lost no rollout and answered with no wrong version", { timeout: 120_000 }, async () => {
    await world.finish();
    expect(world.lost).toEqual([]);
    await expectTrueAnswers(world, [server, other]);
    const retried = world.answers.filter(({ tries }) => tries > 1).length;
    console.log(`vLLM: ${world.answers.length} answers, ${retried} of them to a repeated request`);
  });
});

/** Tokens that a server has sampled since it started. */
async function sampled({ url }: ServerProcess): Promise<number> {
  const page = await (await fetch(`${url}/metrics`)).text();
  return [...page.matchAll(/^vllm:generation_tokens_total\{.*\} (\S+)$/gm)].reduce((sum, [, n]) => sum + Number(n), 0);
}
