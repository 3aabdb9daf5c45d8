import { join } from "node:path";
import type { EdgeClient } from "#shared/client.ts";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { inferenceClient } from "#shared/inference-client.ts";
import { shardOf, type Placement } from "#shared/shards.ts";
import { mintToken } from "#shared/tokens.ts";
import { urlListSchema } from "#shared/url-list.ts";
import type { ServePrecision } from "../trainer/inference/config.ts";
import { patient } from "../trainer/patience.ts";
import { inferenceFleet } from "../trainer/release/fleet.ts";
import { makeBaseVersion, type BaseVersion } from "./base-version.ts";
import { ownClient, TENANT } from "./edge-access.ts";
import { ensureKeys, type Keys } from "./keys.ts";
import { LOCAL_TASKS, type LocalTask } from "./local-tasks.ts";
import { storePartName, type Part } from "./part.ts";
import { edgePart } from "./parts/edge.ts";
import { inferencePart } from "./parts/inference.ts";
import { startStore } from "./parts/store.ts";
import { localUrl, type Ports } from "./ports.ts";
import { homesOf, requireEveryShard, storeDir } from "./shards.ts";
import type { StateDir } from "./state.ts";
import type { Supervisor } from "./supervisor.ts";

export interface InstallationOptions {
  readonly state: StateDir;
  readonly ports: Ports;
  readonly task: LocalTask;
  readonly supervisor: Supervisor;
  /** Servers that run elsewhere, with commas between, in place of an endpoint of the installation's own. */
  readonly inferenceUrl?: string | undefined;
  /** What that endpoint multiplies in; float32 where it is not said. */
  readonly precision?: ServePrecision | undefined;
  /** Called as each part answers. */
  readonly onListening: (name: string, url: string, ms: number) => void;
}

export interface Installation {
  readonly keys: Keys;
  readonly base: BaseVersion;
  readonly client: EdgeClient;
  /** `store` is the shard that the local tenant lives in; `inference` may be several, with commas between. */
  readonly urls: { readonly store: string; readonly inference: string; readonly edge: string };
}

/**
 * Starts store, inference and edge (with the agents) side by side, all supervised. None needs another one to start:
 * the edge keeps its first records itself until the store answers. Only where there are several shards it waits for them,
 * to be told who lives where.
 */
export async function startInstallation(options: InstallationOptions): Promise<Installation> {
  const { state, ports, task, supervisor, onListening } = options;
  const keys = await ensureKeys(state.keys);
  const base = await makeBaseVersion({ policy: task.policy, model: task.model, policies: state.policies });
  const storePorts = [ports.store, ...(ports.moreStores ?? [])];
  await requireEveryShard(state, storePorts.length);

  const run = async (part: Part): Promise<void> => {
    const startedAt = performance.now();
    const { first } = await supervisor.run(part);
    onListening(part.name, first.url ?? "", performance.now() - startedAt);
  };
  const storeUrls = storePorts.map(localUrl);
  const inferenceUrl = options.inferenceUrl ?? localUrl(ports.inference);
  const edgeUrl = localUrl(ports.edge);
  const stores = Promise.all(
    storePorts.map((port, shard) => {
      const name = storePartName(shard);
      const logPath = join(state.logs, `${name}.log`);
      return run({
        name,
        logPath,
        probeEveryMs: 5_000, // the probe writes
        start: () => startStore({ name, dir: storeDir(state, shard), port, keys: keys.store, logPath }),
      });
    }),
  );
  const ownInference = async (): Promise<void> => {
    if (options.inferenceUrl !== undefined) return;
    await run(
      inferencePart({
        port: ports.inference,
        // The copy under the state, not the checkout's model: the versions of this state are adapters of exactly that one.
        model: base.artifact,
        adapterDir: state.policies,
        precision: options.precision ?? "fp32",
        // Read when the first token comes, which the edge itself sends.
        jwks: `${edgeUrl}/.well-known/jwks.json`,
        logDir: state.logs,
      }),
    );
  };
  const edge = async (): Promise<Placement> => {
    const placement = { shards: storeUrls.length, homes: {} };
    if (storeUrls.length > 1) {
      await stores;
      placement.homes = await homesOf(storeUrls.map((url) => ({ url, token: keys.store.readToken })));
    }
    await run(
      edgePart({
        port: ports.edge,
        stateDir: state.edge,
        logDir: state.logs,
        storeUrls,
        storeHomes: placement.homes,
        inferenceUrl,
        keys,
        agents: Object.fromEntries(Object.values(LOCAL_TASKS).map(({ agent, agentConfig }) => [agent, agentConfig])),
      }),
    );
    return placement;
  };
  const [placement] = await Promise.all([edge(), stores, ownInference()]);
  const urls = { store: storeUrls[shardOf(TENANT, placement)] ?? "", inference: inferenceUrl, edge: edgeUrl };
  return { keys, base, urls, client: ownClient(urls.edge, keys.edge, "admin") };
}

/** Tasks to train on; a run of sixty steps of sixteen uses fewer than half of them. */
const TRAIN_TASKS = 2048;
const TASKS_PER_REQUEST = 500;
/** A busy machine may have the store look away for a moment just after it has come up. */
const SEED_WITHIN_MS = 60_000;

/** Registers the task's inputs and its policy with version 0. Repeatable. */
export async function seedTask(
  client: EdgeClient,
  { task, base, valTasks }: { readonly task: LocalTask; readonly base: BaseVersion; readonly valTasks: number },
): Promise<{ train: number; val: number }> {
  const all = [
    ...Array.from({ length: TRAIN_TASKS }, (_, index) => task.makeTask("train", index)),
    ...Array.from({ length: valTasks }, (_, index) => task.makeTask("val", index)),
  ];
  const edge = patient(client, { limitMs: SEED_WITHIN_MS });
  for (let from = 0; from < all.length; from += TASKS_PER_REQUEST) {
    await edge.createTasks(all.slice(from, from + TASKS_PER_REQUEST));
  }
  await edge.createPolicy({ name: task.policy, artifact: base.artifact, sha256: base.sha256, kind: "base" });
  return { train: TRAIN_TASKS, val: valTasks };
}

/**
 * Has inference load the base version under its name, so that a model which it cannot serve is one clear sentence now
 * and not a failure of every rollout later.
 * @throws FulgurError ERR_MODEL with inference's own words
 */
export async function proveBaseVersion(
  { urls, keys }: Pick<Installation, "urls" | "keys">,
  name: string,
  artifact: string,
): Promise<void> {
  const { token } = await mintToken(keys.edge, { tenantId: TENANT, scopes: ["trainer"], ttlSeconds: 60 });
  const key = process.env["FULGUR_INFERENCE_KEY"] || token;
  const servers = urlListSchema
    .parse(urls.inference)
    .map((baseUrl) => inferenceClient({ baseUrl, key: () => Promise.resolve(key) }));
  // A server that is away now is told of when a version is published, and by the edge.
  await inferenceFleet(servers, { warn: () => {} })
    .load(name, artifact)
    .catch((cause: unknown) => {
      throw new FulgurError("ERR_MODEL", messageOf(cause), { cause });
    });
}
