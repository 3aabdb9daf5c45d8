import { z } from "zod";
import {
  agentSettingsSchema,
  parseModelTarget,
  type AgentSettings,
  type AgentSettingsInput,
} from "#shared/agent-settings.ts";
import { FulgurError } from "#shared/errors.ts";
import type { StoreWriter } from "#shared/store/statement.ts";
import type { KeySet } from "#shared/tokens.ts";
import { urlListSchema, urlListTextSchema } from "#shared/url-list.ts";
import { agentInputSchema } from "#shared/wire-access.ts";
import { inferenceBinding } from "./inference-binding.ts";
import type { OutboundRules } from "./outbound-url.ts";
import { objectName, rememberedShardOf, storeBinding, storeShards, type StoreShard } from "./shards.ts";

/** The Worker's bindings and variables, and their one parse into {@link EdgeConfig}. */

/** RPC of the Durable Object through which everything of a shard is written; see record/writer.ts. */
export interface WriterRpc extends StoreWriter, Rpc.DurableObjectBranded {}

/** RPC of the Durable Object that runs a shard's rollouts; see dispatch/dispatcher.ts. */
export interface DispatcherRpc extends Rpc.DurableObjectBranded {
  wake(): Promise<void>;
}

/** A queue message: ids only, never prompts; it wakes, the store is the truth. */
export interface RolloutMessage {
  readonly rollout_ids: readonly string[];
  /** Where they are; the first where it is absent. */
  readonly shard?: number;
}

export interface Env {
  readonly WRITER: DurableObjectNamespace<WriterRpc>;
  readonly DISPATCHER: DurableObjectNamespace<DispatcherRpc>;
  readonly ROLLOUTS: Queue<RolloutMessage>;
  /** The dashboard's files; absent where it was deployed without. */
  readonly ASSETS?: Fetcher;
  /**
   * Ways to libSQL and inference that spare the detour of local fetches; absent in production. `STORE_1` and on are of
   * further shards, `INFERENCE_1` and on of further servers.
   */
  readonly STORE?: Fetcher;
  readonly INFERENCE?: Fetcher;
  /** The first shard's address. */
  readonly STORE_URL: string;
  /** All shards' addresses with commas between; without it there is one. Their order is for good. */
  readonly STORE_SHARDS?: string;
  /** JSON: tenant → the number of its shard, where that is another than its name says (shared/shards.ts). */
  readonly STORE_HOMES?: string;
  /** Used only inside the writers. One for all shards, or one for each with commas between; the other as well. */
  readonly STORE_WRITE_TOKEN: string;
  readonly STORE_READ_TOKEN: string;
  /** One server, or several with commas between. */
  readonly INFERENCE_URL: string;
  /** What inference takes as a bearer key, such as vLLM's `--api-key`; without it the edge signs tokens of its own. */
  readonly INFERENCE_KEY?: string;
  /** Private signing keys as a JWKS, JSON. */
  readonly SIGNING_KEYS: string;
  /** JSON: agent name → its settings (shared/agent-settings.ts); those of the store are laid over them. */
  readonly AGENTS: string;
  readonly PUBLIC_URL: string;
  readonly LOCAL_SESSION?: string;
  /** 32 bytes in base64url that seal the providers' keys in the store; without it the edge keeps none. */
  readonly VAULT_KEY?: string;
  /** Names of this environment's variables that providers may take their key from, with commas between; none by default. */
  readonly PROVIDER_KEY_ENVS?: string;
  /** Base URLs with commas between: where it is set, the only ones that providers, agents, evaluators and collectors may have. */
  readonly UPSTREAM_BASES?: string;
}

/** An agent's settings, ready to be used. */
export interface AgentConfig extends AgentSettings {
  /** Where `*` leads, if to a policy; else empty. */
  readonly policy: string;
}

/** @throws z.ZodError where they are not an agent's settings */
export function agentConfig(input: unknown): AgentConfig {
  const settings = agentSettingsSchema.parse(input);
  const rest = Object.hasOwn(settings.models, "*") ? parseModelTarget(settings.models["*"] ?? "") : undefined;
  return { ...settings, policy: rest?.kind === "policy" ? rest.policy : "" };
}

const signingKeysSchema = z.object({
  keys: z.array(z.looseObject({ kty: z.literal("OKP"), kid: z.string(), d: z.string() })).min(1),
});

const variablesSchema = z.object({
  STORE_URL: z.url(),
  STORE_SHARDS: z.string().optional(),
  STORE_HOMES: jsonOf(z.record(z.string(), z.int().min(0))).optional(),
  STORE_READ_TOKEN: z.string().min(1),
  INFERENCE_URL: urlListTextSchema.pipe(urlListSchema),
  INFERENCE_KEY: z
    .string()
    .regex(/^[\x21-\x7e]+$/, "it takes a key without spaces")
    .optional(),
  SIGNING_KEYS: jsonOf(signingKeysSchema),
  AGENTS: jsonOf(z.record(z.string(), agentInputSchema)),
  PUBLIC_URL: z.url(),
  LOCAL_SESSION: z.enum(["0", "1"]).default("0"),
  VAULT_KEY: z
    .string()
    .regex(/^[A-Za-z0-9_-]{43}$/, "it takes 32 bytes in base64url, 43 characters")
    .optional(),
  PROVIDER_KEY_ENVS: z.string().default(""),
  UPSTREAM_BASES: z
    .string()
    .transform((text) =>
      text
        .split(",")
        .map((base) => base.trim())
        .filter((base) => base !== ""),
    )
    .pipe(z.array(z.url("it takes base URLs with commas between")))
    .default([]),
});

export interface EdgeConfig {
  /** The databases, each with its read token; at least one. */
  readonly shards: readonly StoreShard[];
  /** The index of the one that a tenant lives in. */
  readonly shardOf: (tenantId: string) => number;
  /** Of each server; at least one. */
  readonly inferenceUrls: readonly string[];
  /** Undefined: the edge signs its own tokens for inference. */
  readonly inferenceKey: string | undefined;
  readonly signingKeys: KeySet;
  /** The deploy-time agents; directory.ts has those that hold now. */
  readonly agents: Readonly<Record<string, AgentConfig>>;
  /** The same as they were written. */
  readonly agentInputs: Readonly<Record<string, AgentSettingsInput>>;
  /** Base URL handed to agents; `/v1` is appended. */
  readonly publicUrl: string;
  /** Whether `GET /v1/session` gives the page a read token (local use only). */
  readonly localSession: boolean;
  /** What admins may have it call. */
  readonly outbound: OutboundRules;
  /** Seals the providers' keys; base64url. */
  readonly vaultKey: string | undefined;
  /** The keys that providers may name, by their variable's name. */
  readonly providerKeys: ReadonlyMap<string, string>;
}

const parsed = new WeakMap<object, EdgeConfig>();

/**
 * The variables, parsed once per environment.
 * @throws FulgurError ERR_CONFIG naming the variable and what is wrong with it (never its value)
 */
export function edgeConfig(env: Env): EdgeConfig {
  const known = parsed.get(env);
  if (known !== undefined) return known;
  const result = variablesSchema.safeParse(env);
  if (!result.success) {
    const [issue] = result.error.issues;
    throw new FulgurError(
      "ERR_CONFIG",
      `the edge's variable ${issue?.path.join(".") ?? "(unknown)"} is not usable: ${issue?.message ?? "unknown"}; see edge/config.ts`,
    );
  }
  const variables = result.data;
  const shards = storeShards(variables, variables.STORE_READ_TOKEN);
  const homes = variables.STORE_HOMES ?? {};
  if (Object.values(homes).some((home) => home >= shards.length)) {
    throw new FulgurError(
      "ERR_CONFIG",
      `the edge's variable STORE_HOMES names a shard that is not there; there are ${shards.length}, counted from 0`,
    );
  }
  const config: EdgeConfig = {
    shards,
    shardOf: rememberedShardOf({ shards: shards.length, homes }),
    inferenceUrls: variables.INFERENCE_URL,
    inferenceKey: variables.INFERENCE_KEY,
    signingKeys: variables.SIGNING_KEYS,
    agents: Object.fromEntries(Object.entries(variables.AGENTS).map(([name, input]) => [name, agentConfig(input)])),
    agentInputs: variables.AGENTS,
    publicUrl: variables.PUBLIC_URL.replace(/\/+$/, ""),
    localSession: variables.LOCAL_SESSION === "1",
    outbound: {
      local: variables.LOCAL_SESSION === "1",
      ...(variables.UPSTREAM_BASES.length === 0 ? {} : { bases: variables.UPSTREAM_BASES }),
    },
    vaultKey: variables.VAULT_KEY,
    providerKeys: providerKeys(env, variables.PROVIDER_KEY_ENVS),
  };
  parsed.set(env, config);
  return config;
}

/** Only variables that are named for it: a provider must not be able to send the edge's own secrets to its address. */
function providerKeys(env: Env, names: string): ReadonlyMap<string, string> {
  const keys = new Map<string, string>();
  for (const name of names.split(",").map((text) => text.trim())) {
    const value: unknown = Reflect.get(env, name);
    if (typeof value === "string" && value !== "") keys.set(name, value);
  }
  return keys;
}

/** `fetch` by way of a binding where there is one. */
export function fetchBy(service: Fetcher | undefined): typeof fetch {
  return service === undefined ? (input, init) => fetch(input, init) : (input, init) => service.fetch(input, init);
}

/** `fetch` to a shard's database, directly where the host binds a way. */
export function storeFetch(env: object, shard: number): typeof fetch {
  const service: unknown = Reflect.get(env, storeBinding(shard));
  return fetchBy(isFetcher(service) ? service : undefined);
}

/** `fetch` to the inference servers, directly where the host binds ways. */
export function inferenceWay(env: object, { inferenceUrls: urls }: Pick<EdgeConfig, "inferenceUrls">): typeof fetch {
  const ways = urls.map((_, server) => {
    const service: unknown = Reflect.get(env, inferenceBinding(server));
    return fetchBy(isFetcher(service) ? service : undefined);
  });
  const [first = fetch] = ways;
  if (ways.length < 2) return first;
  return (input, init) => {
    const url = typeof input === "string" ? input : input instanceof URL ? input.href : input.url;
    const server = urls.findIndex((base) => url.startsWith(`${base}/`));
    return (ways[server] ?? fetch)(input, init);
  };
}

const writerIds = new WeakMap<object, (DurableObjectId | undefined)[]>();

/** The one writer of a shard's database. */
export function writerOf(env: Env, shard: number): StoreWriter {
  let ids = writerIds.get(env);
  if (ids === undefined) writerIds.set(env, (ids = []));
  // Deriving an id from a name hashes it, which is no small part of a call.
  const id = (ids[shard] ??= env.WRITER.idFromName(objectName("writer", shard)));
  return env.WRITER.get(id);
}

/**
 * The Worker behind a service binding.
 * @throws FulgurError ERR_CONFIG when the environment has no such service binding
 */
export function serviceOf(env: Env, binding: string): Fetcher {
  const service: unknown = Reflect.get(env, binding);
  if (!isFetcher(service)) {
    throw new FulgurError("ERR_CONFIG", `the edge has no service binding ${binding}; add it to its services`);
  }
  return service;
}

function isFetcher(value: unknown): value is Fetcher {
  return typeof value === "object" && value !== null && "fetch" in value;
}

function jsonOf<T extends z.ZodType>(schema: T) {
  return z
    .string()
    .transform((text, context): unknown => {
      try {
        return JSON.parse(text);
      } catch {
        context.addIssue({ code: "custom", message: "it is not JSON" });
        return z.NEVER;
      }
    })
    .pipe(schema);
}
