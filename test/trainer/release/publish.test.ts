import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { FulgurError } from "#shared/errors.ts";
import type { Engine } from "../../../trainer/engine/contract.ts";
import type { LoopState } from "../../../trainer/release/checkpoint.ts";
import { publish, retireOldVersion, type PublishDeps } from "../../../trainer/release/publish.ts";

let versions: string;
beforeEach(async () => {
  versions = await mkdtemp(join(tmpdir(), "fulgur-publish-"));
});
afterEach(() => rm(versions, { recursive: true, force: true }));

/** Everything that publishing asks for, in order; the named one fails. */
function world(
  failing?: string,
  {
    last = 42,
    registered = null,
    tenant = "default",
  }: { readonly last?: number; readonly registered?: number | null; readonly tenant?: string } = {},
): { deps: PublishDeps; asked: string[]; marked: object[] } {
  const asked: string[] = [];
  const marked: object[] = [];
  const ask = async (what: string): Promise<void> => {
    asked.push(what);
    if (failing !== undefined && what.startsWith(failing)) throw new FulgurError("ERR_CHECKPOINT", `${what} failed`);
  };
  const exportAdapter = async (dir: string): Promise<void> => {
    await ask("export");
    await mkdir(dir, { recursive: true });
    await writeFile(join(dir, "adapter_model.safetensors"), "w");
  };
  const deps: PublishDeps = {
    tenant,
    // Publishing looks at the method alone.
    engine: { info: { method: "lora" } as Engine["info"], exportAdapter, exportWeights: exportAdapter },
    edge: {
      markTrained: async (batchId, body) => {
        marked.push(body);
        await ask(`trained ${batchId} ${body.parentVersion}→${body.version}`);
        return {};
      },
      routePolicy: async (policy, version) => {
        await ask(`route ${policy}@${version}`);
        return {};
      },
    },
    records: {
      batch: async () => ({ status: registered === null ? "claimed" : "trained", version: registered }),
      lastVersion: async () => last,
    },
    inference: {
      load: (name) => ask(`load ${name}`),
      prove: (name) => ask(`prove ${name}`),
      unload: (name) => ask(`unload ${name}`),
    },
    artifact: { versions, baseSha256: undefined },
    now: () => 0,
  };
  return { deps, asked, marked };
}

function stateAt(step: number): LoopState {
  return {
    run: "r",
    policy: "flight",
    method: "lora",
    seed: 1,
    step,
    // The number of the last step is not known before it is published.
    lineage: { base: 0, made: [41, 42, 43, 44].slice(0, Math.max(0, step - 1)) },
    lastBatch: step === 0 ? null : { id: `ba_${step}`, metrics: { reward_mean: 0.5 } },
    sums: { wallSeconds: 0, stepSeconds: 2, trainedTokens: 0, trainSeconds: 0, decodedTokens: 0, decodeSeconds: 0 },
    rewards: [],
    baseline: { mean: 0, rollouts: 0 },
    replay: [],
  };
}

describe("publish", () => {
  it("exports, marks the batch trained, loads, proves and only then routes", async () => {
    const { deps, asked, marked } = world();
    const published = await publish(deps, stateAt(3));
    expect(published).toEqual({ ...stateAt(3), lineage: { base: 0, made: [41, 42, 43] } });
    expect(asked).toEqual(["export", "trained ba_3 42→43", "load flight@43", "prove flight@43", "route flight@43"]);
    expect(marked).toEqual([
      {
        version: 43,
        parentVersion: 42,
        kind: "adapter",
        artifact: join(versions, "43"),
        sha256: expect.stringMatching(/^[0-9a-f]{64}$/),
        metrics: { reward_mean: 0.5 },
      },
    ]);
  });

  it("has inference serve another tenant's version under that tenant's name, and the edge know it by its own", async () => {
    const { deps, asked } = world(undefined, { tenant: "acme" });
    await publish(deps, stateAt(3));
    expect(asked.slice(2)).toEqual(["load acme~flight@43", "prove acme~flight@43", "route flight@43"]);
    const manifest: unknown = JSON.parse(await readFile(join(versions, "43", "manifest.json"), "utf8"));
    expect(manifest).toMatchObject({ name: "acme~flight@43", batch_id: "ba_3" });
    await retireOldVersion(deps, { ...stateAt(3), lineage: { base: 0, made: [41, 42, 43] } });
    expect(asked.at(-1)).toBe("unload acme~flight@41");
  });

  it("has the base for the first version's parent, and nothing to do before the first step", async () => {
    const { deps, asked } = world();
    expect(await publish(deps, stateAt(0))).toEqual(stateAt(0));
    expect(asked).toEqual([]);
    await publish(deps, stateAt(1));
    expect(asked[1]).toBe("trained ba_1 0→43");
  });

  it.each(["trained", "load", "prove"])("routes nothing when %s fails, and is whole when repeated", async (failing) => {
    const broken = world(failing, { last: 41 });
    await expect(publish(broken.deps, stateAt(2))).rejects.toThrow("failed");
    expect(broken.asked.some((what) => what.startsWith("route"))).toBe(false);
    const { deps, asked } = world(undefined, { last: 41 });
    await publish(deps, stateAt(2));
    // The artifact is there already and is proven instead of written again.
    expect(asked).toEqual(["trained ba_2 41→42", "load flight@42", "prove flight@42", "route flight@42"]);
    expect(await readdir(versions)).toEqual(["42"]);
  });

  it("keeps a number that the batch has, whatever other runs have taken since, and takes none that is anybody's", async () => {
    await publish(world(undefined, { last: 41 }).deps, stateAt(2));
    // Exported as 42 and not registered, while another run went on to 45.
    const late = world(undefined, { last: 45 });
    expect((await publish(late.deps, stateAt(2))).lineage).toEqual({ base: 0, made: [41, 42] });
    expect(late.asked[0]).toBe("trained ba_2 41→42");
    // Registered as 42, its folder gone since.
    await rm(join(versions, "42"), { recursive: true });
    const again = world(undefined, { last: 45, registered: 42 });
    await publish(again.deps, stateAt(2));
    expect(again.asked.slice(0, 2)).toEqual(["export", "trained ba_2 41→42"]);
    // The next step's: 46 is on disk, of nobody that is known.
    await mkdir(join(versions, "46"));
    const next = world(undefined, { last: 45 });
    expect((await publish(next.deps, stateAt(3))).lineage).toEqual({ base: 0, made: [41, 42, 47] });
  });
});

describe("retireOldVersion", () => {
  it("unloads the version before the last, never the base", async () => {
    const { deps, asked } = world();
    for (const step of [0, 1, 2, 3, 4]) {
      await retireOldVersion(deps, { ...stateAt(step), lineage: { base: 0, made: [41, 42, 43, 44] } });
    }
    expect(asked).toEqual(["unload flight@41", "unload flight@42"]);
  });
});
