import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { TrainerConfig } from "../../../trainer/config.ts";
import type { Engine, TokenScores } from "../../../trainer/engine/contract.ts";
import { trainRun } from "../../../trainer/loop.ts";
import { ALARM_NAMES } from "../../../trainer/metrics/alarms.ts";
import { METRICS, helpOf, type MetricSpec } from "../../../trainer/metrics/catalogue.ts";
import { LABELS, parseKey } from "../../../trainer/metrics/key.ts";
import { World } from "../support/world.ts";

/** Keys of what runs emit whose settings make everything be measured that can be. */
const emitted = new Set<string>();
let docs: string;
let dir: string;

beforeAll(async () => {
  docs = await readFile("docs/METRICS.md", "utf8");
  dir = await mkdtemp(join(tmpdir(), "fulgur-catalogue-"));
  const settings: Partial<TrainerConfig>[] = [
    { replay: 1, peakTflops: 1, refillGroups: 2 },
    { algorithm: "ppo" },
    { algorithm: "grpo", importance: "sequence-mask", whenStale: "discard" },
  ];
  for (const [at, each] of settings.entries()) {
    const world = await new World(join(dir, String(at))).prepare();
    // Every third group earns the same, so that some are dropped.
    world.rewardOf = (rollout) => (Math.floor(rollout.at / 2) % 3 === 2 ? 1 : rollout.at % 2);
    const deps = world.deps(world.config({ steps: 3, evalTasks: 2, ...each }));
    const openEngine = async (start: Parameters<typeof deps.openEngine>[0]) => withValues(await deps.openEngine(start));
    await trainRun({ ...deps, openEngine });
    for (const event of world.events) {
      if (event.event === "step") for (const key of Object.keys(event.metrics)) emitted.add(key);
    }
  }
});
afterAll(async () => {
  await rm(dir, { recursive: true });
});

/** An engine whose critic expects nothing. */
function withValues(engine: Engine): Engine {
  const valued = (scores: readonly TokenScores[]): TokenScores[] =>
    scores.map((each) => ({ ...each, values: new Float32Array(each.logprobs.length) }));
  return new Proxy(engine, {
    get(target, name) {
      if (name === "score") return async (...args: Parameters<Engine["score"]>) => valued(await target.score(...args));
      if (name === "backward") {
        return async (...args: Parameters<Engine["backward"]>) => valued(await target.backward(...args));
      }
      return Reflect.get(target, name);
    },
  });
}

/** Names and labelled keys (`name/kind`) of the tables' first columns, but for the evaluation's and the alarms'. */
function documented(): { names: Set<string>; labelled: Set<string> } {
  const names = new Set<string>();
  const labelled = new Set<string>();
  const tables = docs.slice(docs.indexOf("## What the agent achieved"), docs.indexOf("## Alarms"));
  for (const [, cell = ""] of tables.matchAll(/^\| (`[^|]*) \|/gm)) {
    for (const [, key = ""] of cell.matchAll(/`([^`]+)`/g)) {
      const [name = "", kind] = key.split("/");
      if (kind === undefined) names.add(name);
      else labelled.add(`${name}/${kind}`);
    }
  }
  return { names, labelled };
}

const specs = Object.entries<MetricSpec>(METRICS);

it("has exactly the names that runs emit", () => {
  // The toy's rollouts are of one call, and none is left to merge.
  const names = new Set([...emitted, "merge_rate"].map((key) => parseKey(key).name));
  expect([...names].toSorted()).toEqual(Object.keys(METRICS).toSorted());
});

it("has exactly the kinds that runs tell apart", () => {
  const found = new Set<string>();
  for (const key of emitted) {
    const { name, label } = parseKey(key);
    if (label !== undefined) found.add(`${name}/${label}`);
  }
  // What goes wrong with rows and calls is not a thing that this toy does.
  for (const name of ["merge_failures", "calls_skipped", "run_failed"]) found.add(`${name}/reason`);
  const known = specs.flatMap(([name, { labels = [] }]) => labels.map((label) => `${name}/${label}`));
  expect([...found].toSorted()).toEqual(known.toSorted());
  for (const [name, { only }] of specs) expect(emitted.has(name)).toBe(only !== true && name !== "merge_rate");
});

it("is what docs/METRICS.md explains, name for name", () => {
  const { names, labelled } = documented();
  const own = specs.filter(([, { only }]) => only !== true).map(([name]) => name);
  expect([...names].toSorted()).toEqual(own.toSorted());
  const kinds = specs.flatMap(([name, { labels = [] }]) => labels.map((label) => `${name}/${label}`));
  expect([...labelled].toSorted()).toEqual(kinds.toSorted());
});

it("has every alarm in docs/METRICS.md", () => {
  const section = docs.slice(docs.indexOf("## Alarms"), docs.indexOf("## An evaluation"));
  const alarms = [...section.matchAll(/^\| `([a-z_]+)` \|/gm)].map(([, name]) => name);
  expect(new Set(alarms)).toEqual(new Set<unknown>(ALARM_NAMES));
  expect(alarms).toHaveLength(ALARM_NAMES.length);
});

it("can be Prometheus names and labels, each with a line of help", () => {
  for (const [name] of specs) {
    expect(name).toMatch(/^[a-z][a-z0-9_]*$/);
    expect(helpOf(name).length).toBeGreaterThan(10);
    expect(helpOf(name)).not.toContain("\n");
  }
  for (const label of LABELS) expect(label).toMatch(/^[a-z]+$/);
  expect(helpOf("not_there")).toBe("not_there");
});
