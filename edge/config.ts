import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import type { StoreWriter } from "#shared/store/statement.ts";
import type { KeySet } from "#shared/tokens.ts";

/** The Worker's bindings and variables, and their one parse into {@link EdgeConfig}. */

/** RPC of the one Durable Object through which everything is written; see record/writer.ts. */
export interface WriterRpc extends StoreWriter, Rpc.DurableObjectBranded {}

/** RPC of the Durable Object that runs rollouts; see dispatch/dispatcher.ts. */
export interface DispatcherRpc extends Rpc.DurableObjectBranded {
  wake(): Promise<void>;
}

/** A queue message: ids only, never prompts; it wakes, the store is the truth. */
export interface RolloutMessage {
  readonly rollout_ids: readonly string[];
}

export interface Env {
  readonly WRITER: DurableObjectNamespace<WriterRpc>;
  readonly DISPATCHER: DurableObjectNamespace<DispatcherRpc>;
  readonly ROLLOUTS: Queue<RolloutMessage>;
  /** The dashboard's files; absent where it was deployed without. */
  readonly ASSETS?: Fetcher;
  /** Ways to libSQL and inference that spare the detour of local fetches; absent in production. */
  readonly STORE?: Fetcher;
  readonly INFERENCE?: Fetcher;
  readonly STORE_URL: string;
  /** Used only inside the writer. */
  readonly STORE_WRITE_TOKEN: string;
  readonly STORE_READ_TOKEN: string;
  readonly INFERENCE_URL: string;
  /** Private signing keys as a JWKS, JSON. */
  readonly SIGNING_KEYS: string;
  /** JSON of {@link agentsSchema}. */
  readonly AGENTS: string;
  readonly PUBLIC_URL: string;
  readonly LOCAL_SESSION?: string;
}

const agentSchema = z
  .strictObject({
    /** Name of the service binding that leads to the agent's Worker. */
    binding: z.string().regex(/^[A-Z][A-Z0-9_]*$/, "a binding's name is upper-case letters, digits and _"),
    /** Policy that answers the agent's calls, whatever model name they ask for. */
    policy: z.string().min(1),
    /** Tool name → weight of its AIR signal. */
    tools: z.record(z.string(), z.number().min(0).max(1)).default({}),
    /** r = α·status + (1 − α)·terminal. */
    alpha: z.number().min(0).max(1).default(0.5),
    concurrency: z.int().min(1).max(1000).default(32),
    timeout_ms: z.int().min(1000).max(900_000).default(60_000),
    max_attempts: z.int().min(1).max(10).default(3),
  })
  .transform(({ timeout_ms: timeoutMs, max_attempts: maxAttempts, ...rest }) => ({ ...rest, timeoutMs, maxAttempts }));

export const agentsSchema = z.record(z.string(), agentSchema);
export type AgentConfig = z.infer<typeof agentSchema>;

const signingKeysSchema = z.object({
  keys: z.array(z.looseObject({ kty: z.literal("OKP"), kid: z.string(), d: z.string() })).min(1),
});

const variablesSchema = z.object({
  STORE_URL: z.url(),
  STORE_READ_TOKEN: z.string().min(1),
  INFERENCE_URL: z.url(),
  SIGNING_KEYS: jsonOf(signingKeysSchema),
  AGENTS: jsonOf(agentsSchema),
  PUBLIC_URL: z.url(),
  LOCAL_SESSION: z.enum(["0", "1"]).default("0"),
});

export interface EdgeConfig {
  readonly storeUrl: string;
  readonly storeReadToken: string;
  readonly inferenceUrl: string;
  readonly signingKeys: KeySet;
  readonly agents: Readonly<Record<string, AgentConfig>>;
  /** Base URL handed to agents; `/v1` is appended. */
  readonly publicUrl: string;
  /** Whether `GET /v1/session` gives the page a read token (local use only). */
  readonly localSession: boolean;
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
  const config: EdgeConfig = {
    storeUrl: variables.STORE_URL,
    storeReadToken: variables.STORE_READ_TOKEN,
    inferenceUrl: variables.INFERENCE_URL.replace(/\/+$/, ""),
    signingKeys: variables.SIGNING_KEYS,
    agents: variables.AGENTS,
    publicUrl: variables.PUBLIC_URL.replace(/\/+$/, ""),
    localSession: variables.LOCAL_SESSION === "1",
  };
  parsed.set(env, config);
  return config;
}

/** `fetch` by way of a binding where there is one. */
export function fetchBy(service: Fetcher | undefined): typeof fetch {
  return service === undefined ? (input, init) => fetch(input, init) : (input, init) => service.fetch(input, init);
}

const writerIds = new WeakMap<object, DurableObjectId>();

/** The one writer of this database. */
export function writerOf(env: Env): StoreWriter {
  let id = writerIds.get(env);
  // Deriving an id from a name hashes it, which is no small part of a call.
  if (id === undefined) writerIds.set(env, (id = env.WRITER.idFromName("writer")));
  return env.WRITER.get(id);
}

/**
 * The agent's Worker.
 * @throws FulgurError ERR_CONFIG when the environment has no such service binding
 */
export function agentService(env: Env, agent: AgentConfig): Fetcher {
  const service: unknown = Reflect.get(env, agent.binding);
  if (!isFetcher(service)) {
    throw new FulgurError("ERR_CONFIG", `the edge has no service binding ${agent.binding}; add it to its services`);
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
