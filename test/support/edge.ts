import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { edgeClient, type EdgeClient } from "#shared/client.ts";
import { shardOf } from "#shared/shards.ts";
import { mintToken, newSigningKey, type KeySet, type MintOptions } from "#shared/tokens.ts";
import type { Mode } from "#shared/words.ts";
import { FLIGHT_AGENT } from "../../cli/local-tasks.ts";
import { startEdge, type EdgeHostConfig } from "../../cli/parts/edge-host.ts";
import { startMockInference, type MockAnswer, type MockInference } from "./mock-inference.ts";
import { setting } from "./seed.ts";
import { startTestStore, type TestStore } from "./store.ts";

/** A whole edge on real parts (workerd, libSQL) in front of a mock inference endpoint. */
export interface TestEdge {
  readonly url: string;
  /** The shard of tenant `default`. */
  readonly store: TestStore;
  /** All shards. */
  readonly stores: readonly TestStore[];
  readonly inference: MockInference;
  readonly keys: KeySet;
  /** With every scope. */
  readonly admin: EdgeClient;
  mint(options: Partial<MintOptions> & Pick<MintOptions, "scopes">): Promise<string>;
  /** A new self-started rollout's id and token. */
  rollout(
    mode?: Mode,
    options?: { readonly pin?: string; readonly caps?: { maxCalls: number; maxTokens: number } },
  ): Promise<{ id: string; token: string }>;
  /** Posts JSON with a token. */
  post(path: string, token: string, body: unknown): Promise<Response>;
  /** Ends workerd and starts it again on the same state. */
  restart(): Promise<void>;
  stop(): Promise<void>;
}

export interface TestEdgeOptions {
  readonly answer?: MockAnswer;
  readonly agents?: EdgeHostConfig["agents"];
  readonly agentEntries?: Readonly<Record<string, string>>;
  /** Service binding → entry. */
  readonly evaluatorEntries?: Readonly<Record<string, string>>;
  /** In place of the mock. */
  readonly inferenceUrl?: string;
  /** Databases; FULGUR_TEST_SHARDS where absent, else one. */
  readonly shards?: number;
  /** Tenant → shard, where that is another than its name says. */
  readonly homes?: Readonly<Record<string, number>>;
  /** How often the sweep runs; never where absent. */
  readonly sweepIntervalMs?: number;
  /** Where the store's and the edge's folders are made, in place of the system's own for such things. */
  readonly storeParent?: string;
  readonly stateParent?: string;
}

export const SHA256 = "0".repeat(64);

/** Starts it with policy `flight` registered, version 0 routed. */
export async function startTestEdge(options: TestEdgeOptions = {}): Promise<TestEdge> {
  const folder = await mkdtemp(join(options.stateParent ?? tmpdir(), "fulgur-edge-"));
  const { shards = setting("FULGUR_TEST_SHARDS", 1, { min: 1, max: 8 }), homes = {} } = options;
  const stores: TestStore[] = [];
  while (stores.length < shards) stores.push(await startTestStore(options.storeParent));
  const store = stores[shardOf("default", { shards, homes })];
  if (store === undefined) throw new Error("the default tenant's home is not there");
  const inference = await startMockInference(options.answer);
  const keys: KeySet = { keys: [await newSigningKey()] };
  const start = (): ReturnType<typeof startEdge> =>
    startEdge({
      port: 0,
      state_dir: folder,
      store: stores.map(({ url, keys: own }) => ({ url, write_token: own.writeToken, read_token: own.readToken })),
      store_homes: { ...homes },
      inference_url: options.inferenceUrl ?? inference.url,
      signing_keys: { keys: [...keys.keys] },
      vault_key: "v".repeat(43),
      agents: options.agents ?? { flight: FLIGHT_AGENT },
      agent_entries: { ...(options.agentEntries ?? { flight: join(import.meta.dirname, "idle-agent.ts") }) },
      evaluator_entries: { ...options.evaluatorEntries },
      sweep_interval_ms: options.sweepIntervalMs ?? 0,
    });
  let running = await start();
  const mint = async (wanted: Partial<MintOptions> & Pick<MintOptions, "scopes">): Promise<string> =>
    (await mintToken(keys, { tenantId: "default", ...wanted })).token;
  const admin = edgeClient({
    get baseUrl() {
      return running.url;
    },
    token: () => mint({ scopes: ["admin"] }),
  });
  await admin.createPolicy({ name: "flight", artifact: "models/flight", sha256: SHA256 });
  return {
    get url() {
      return running.url;
    },
    store,
    stores,
    inference,
    keys,
    admin,
    mint,
    async rollout(mode = "train", { pin = null, caps } = {}) {
      const granted = await admin.createToken({ agent: "flight", mode, pin, ...(caps === undefined ? {} : { caps }) });
      return { id: granted.rolloutId ?? "", token: granted.token };
    },
    post: (path, token, body) =>
      fetch(`${running.url}${path}`, {
        method: "POST",
        headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
        body: typeof body === "string" ? body : JSON.stringify(body),
      }),
    async restart() {
      await running.stop();
      running = await start();
    },
    async stop() {
      await running.stop();
      await inference.stop();
      for (const one of stores) await one.stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
}
