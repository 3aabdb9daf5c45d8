import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { builtInServer, type ServerProcess } from "../support/server-process.ts";
import { freePort } from "../support/store.ts";
import { until } from "../support/until.ts";
import { expectTrueAnswers, MODEL, startFleetWorld, stickyShare, type FleetWorld } from "./fleet-rounds.ts";

/**
 * Two inference servers behind an edge, under load: versions are published, one server is killed, a version is published
 * while it is away, and it comes back with nothing loaded and no trainer to load anything.
 */

let first: ServerProcess;
let second: ServerProcess;
let world: FleetWorld;
beforeAll(async () => {
  [first, second] = await Promise.all([builtInServer(MODEL, await freePort()), builtInServer(MODEL, await freePort())]);
  world = await startFleetWorld([first, second]);
});
afterAll(async () => {
  await world.stop();
  await Promise.all([first.stop(), second.stop()]);
});

describe("a fleet", () => {
  it("answers with a version once every server has it", { timeout: 120_000 }, async () => {
    await world.publish(1);
    await world.answeredBy(1, 40);
    await world.publish(2);
    await world.answeredBy(2, 40);
    for (const server of [first, second]) expect(await world.loadedAt(server)).toContain("flight@2");
    expect(world.warned).toEqual([]);
    const { share, turns } = await stickyShare(world);
    console.log(`fleet: ${(share * 100).toFixed(1)}% of ${turns} later turns found their rollout's prompt cached`);
    expect(share).toBeGreaterThan(0.95);
  });

  it("goes on without a server that is killed, and publishes without it", { timeout: 120_000 }, async () => {
    await second.kill();
    await world.answeredBy(2, 20);
    await until("the edge takes it out of service", async () => !(await world.inService(1)));
    await world.publish(3);
    expect(world.warned).toEqual([expect.stringContaining(`${second.url} is out of service (load flight@3`)]);
    await world.answeredBy(3, 40);
  });

  it(
    "has a server that comes back without its versions load what is routed, and sends it calls again",
    { timeout: 120_000 },
    async () => {
      await second.restart();
      await until("the edge takes it back", () => world.inService(1));
      expect(await world.loadedAt(second)).toContain("flight@3");
      await until("it samples", async () =>
        /generation_tokens_total\{[^}]*flight@3[^}]*\} [1-9]/.test(await (await fetch(`${second.url}/metrics`)).text()),
      );
      await world.publish(4);
      expect(world.warned.at(-1)).toBe(`inference at ${second.url} is back: it has loaded flight@4`);
      await world.answeredBy(4, 40);
      for (const server of [first, second]) {
        const loaded = await world.loadedAt(server);
        expect([...loaded]).toEqual(expect.arrayContaining(["flight@3", "flight@4"]));
        expect(loaded.has("flight@2")).toBe(false);
      }
    },
  );

  it("has both load a registered version that nobody has loaded, for whoever asks for it by name", async () => {
    await world.register(9);
    expect(new Set(await world.askFor(9, 16))).toEqual(new Set([200]));
    for (const server of [first, second]) expect(await world.loadedAt(server)).toContain("flight@9");
  });

  it("has lost no rollout and answered with no wrong version", { timeout: 120_000 }, async () => {
    await world.finish();
    expect(world.lost).toEqual([]);
    await expectTrueAnswers(world, [first, second]);
    const retried = world.answers.filter(({ tries }) => tries > 1).length;
    console.log(`fleet: ${world.answers.length} answers, ${retried} of them to a repeated request`);
  });
});
