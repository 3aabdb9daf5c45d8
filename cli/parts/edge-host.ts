import { mkdir } from "node:fs/promises";
import { createServer } from "node:net";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, stop as stopEsbuild } from "esbuild";
import { Log, LogLevel, Miniflare, type MiniflareOptions } from "miniflare";
import { z } from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { urlListSchema, urlListTextSchema } from "#shared/url-list.ts";
import { inferenceBinding } from "../../edge/inference-binding.ts";
import { storeBinding } from "../../edge/shards.ts";
import { buildDashboard } from "./dashboard.ts";

/**
 * Hosts the edge on one machine: the Worker `edge` with its queue and Durable Objects, a Worker for each agent and each
 * evaluator, and the page's files, in one workerd process on the loopback address. Run as a program it takes its
 * configuration as JSON from FULGUR_EDGE_CONFIG (or stdin), prints `edge listening on http://…` and ends on SIGTERM or
 * SIGINT.
 */

const ROOT = join(dirname(fileURLToPath(import.meta.url)), "../..");

/** Not later than seven days after the workerd that package-lock.json pins; as in edge/wrangler.jsonc. */
export const COMPATIBILITY_DATE = "2026-11-02";
const COMPATIBILITY_FLAGS = ["nodejs_compat"];

const storeSchema = z.strictObject({ url: z.url(), write_token: z.string().min(1), read_token: z.string().min(1) });
const hostConfigSchema = z.strictObject({
  /** 0 takes a free one. */
  port: z.int().min(0).max(65_535).default(8787),
  /** Where Durable Objects keep their storage (the writer's outbox): records wait there while the store is away. */
  state_dir: z.string().min(1),
  /** Several are shards, in an order that is for good. */
  store: z.union([storeSchema, z.array(storeSchema).min(1)]),
  /** Tenant → the number of its shard, where that is another than its name says (shared/shards.ts). */
  store_homes: z.record(z.string(), z.int().min(0)).default({}),
  /** Several servers with commas between. */
  inference_url: urlListTextSchema,
  /** What they take as a bearer key, such as vLLM's `--api-key`; the edge signs tokens of its own without. */
  inference_key: z.string().optional(),
  /** Private signing keys as a JWKS. */
  signing_keys: z.looseObject({ keys: z.array(z.looseObject({})) }),
  /** 32 bytes in base64url that seal the providers' keys; without it none can be kept. */
  vault_key: z.string().optional(),
  /** Further variables of the edge, whose names providers may take their key from. */
  provider_keys: z.record(z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/), z.string()).default({}),
  /** The edge's UPSTREAM_BASES: what it may call besides this machine; any public https address where absent. */
  upstream_bases: z
    .string()
    .refine((text) => text.split(",").every((base) => base.trim() === "" || URL.canParse(base.trim())), {
      error: "UPSTREAM_BASES takes base URLs with commas between, such as https://api.openai.com,http://10.1.2.3:8000",
    })
    .optional(),
  /** Name → configuration, as edge/config.ts has it. */
  agents: z.record(z.string(), z.looseObject({ binding: z.string().optional() })).default({}),
  /** Name → entry module of its Worker; default `edge/agents/<name>/worker.ts`. */
  agent_entries: z.record(z.string(), z.string()).default({}),
  /** Service binding → entry module of an evaluator's Worker; `EVAL_SQL` is there without. */
  evaluator_entries: z.record(z.string().regex(/^EVAL_[A-Z0-9_]+$/), z.string()).default({}),
  /** Whether `GET /v1/session` gives the page a read token. */
  local_session: z.boolean().default(true),
  /** How often the sweep runs, which a cron trigger does in production; 0 never. */
  sweep_interval_ms: z.int().min(0).default(5000),
});
export type EdgeHostConfig = z.input<typeof hostConfigSchema>;

export interface RunningEdge {
  /** Without a trailing slash. */
  readonly url: string;
  /** Repeatable. */
  stop(): Promise<void>;
}

/**
 * Bundles the Workers and starts them.
 * @throws FulgurError ERR_PORT_TAKEN, ERR_CONFIG, ERR_INTERNAL when workerd does not start
 */
export async function startEdge(input: EdgeHostConfig): Promise<RunningEdge> {
  const config = parseConfig(input);
  const port = await freePort(config.port);
  const url = `http://127.0.0.1:${port}`;
  await mkdir(config.state_dir, { recursive: true, mode: 0o700 });
  let runtime: Miniflare;
  try {
    runtime = new Miniflare(await runtimeOptions(config, port, url));
    await runtime.ready;
  } catch (cause) {
    throw new FulgurError("ERR_INTERNAL", `the edge did not start: ${messageOf(cause)}`, { cause });
  }
  const sweep =
    config.sweep_interval_ms > 0 ? setInterval(() => void runScheduled(runtime), config.sweep_interval_ms) : undefined;
  let stopping: Promise<void> | undefined;
  return {
    url,
    stop: () => {
      clearInterval(sweep);
      return (stopping ??= runtime.dispose());
    },
  };
}

type HostConfig = z.output<typeof hostConfigSchema>;

function parseConfig(input: unknown): HostConfig {
  const parsed = hostConfigSchema.safeParse(input);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new FulgurError(
    "ERR_CONFIG",
    `the edge host's ${issue?.path.join(".") || "configuration"} is not usable: ${issue?.message ?? "unknown"}`,
  );
}

async function runtimeOptions(config: HostConfig, port: number, url: string): Promise<MiniflareOptions> {
  const agents = Object.entries(config.agents).flatMap(([name, { binding }]) =>
    // One without a binding runs elsewhere.
    binding === undefined
      ? []
      : [
          {
            name: `agent-${name}`,
            binding,
            entry: config.agent_entries[name] ?? join(ROOT, "edge/agents", name, "worker.ts"),
          },
        ],
  );
  const evaluators = Object.entries(config.evaluator_entries).map(([binding, entry]) => ({
    name: binding.toLowerCase().replaceAll("_", "-"),
    binding,
    entry,
  }));
  const services = [...agents, ...evaluators];
  const stores = [config.store].flat();
  const inferenceUrls = urlListSchema.parse(config.inference_url);
  const [page, edge, sqlEvaluator, ...bundles] = await Promise.all([
    // Into its own state: another edge may be reading what this one would overwrite elsewhere.
    buildDashboard(ROOT, join(config.state_dir, "page")),
    ...[
      join(ROOT, "edge/worker.ts"),
      join(ROOT, "edge/evaluators/sql/worker.ts"),
      ...services.map(({ entry }) => entry),
    ].map(bundle),
  ]);
  // Its service would keep 100 MB for nothing.
  await stopEsbuild();
  return {
    // Miniflare's own entry, which only its API uses: it puts a Worker of its own (and gzip) before each request.
    host: "127.0.0.1",
    port: 0,
    // Otherwise it asks the network for the request properties of production.
    cf: false,
    // Otherwise Durable Objects forget everything when the process ends.
    resourcePersistencePath: config.state_dir,
    log: new Log(LogLevel.ERROR),
    logRequests: false,
    handleStructuredLogs: ({ message }) => void process.stderr.write(`${message}\n`),
    telemetry: { enabled: false },
    workers: [
      {
        config: {
          name: "edge",
          compatibilityDate: COMPATIBILITY_DATE,
          compatibilityFlags: COMPATIBILITY_FLAGS,
          manifest: manifest(edge ?? ""),
          exports: {
            Writer: { type: "durable-object", storage: "sqlite" },
            Dispatcher: { type: "durable-object", storage: "sqlite" },
          },
          triggers: [{ type: "queue", name: "rollouts", maxBatchSize: 100, maxBatchTimeout: 0 }],
          env: {
            WRITER: { type: "durable-object", worker: "edge", exportName: "Writer" },
            DISPATCHER: { type: "durable-object", worker: "edge", exportName: "Dispatcher" },
            ROLLOUTS: { type: "queue", name: "rollouts" },
            EVAL_SQL: { type: "worker", worker: SQL_EVALUATOR },
            ...Object.fromEntries(services.map(({ name, binding }) => [binding, { type: "worker", worker: name }])),
            // Miniflare puts a Worker before every plain fetch, which costs half as much again.
            ...Object.fromEntries(stores.map(({ url }, shard) => [storeBinding(shard), external(url)])),
            ...Object.fromEntries(inferenceUrls.map((url, server) => [inferenceBinding(server), external(url)])),
            // A Worker of its own: with assets on the edge itself, each LLM call would pass through their router.
            ASSETS: { type: "worker", worker: "page" },
            ...variables({
              STORE_URL: stores[0]?.url ?? "",
              STORE_SHARDS: stores.map((store) => store.url).join(","),
              STORE_HOMES: JSON.stringify(config.store_homes),
              STORE_WRITE_TOKEN: stores.map((store) => store.write_token).join(","),
              STORE_READ_TOKEN: stores.map((store) => store.read_token).join(","),
              INFERENCE_URL: config.inference_url,
              SIGNING_KEYS: JSON.stringify(config.signing_keys),
              AGENTS: JSON.stringify(config.agents),
              PUBLIC_URL: url,
              LOCAL_SESSION: config.local_session ? "1" : "0",
              ...(config.vault_key === undefined ? {} : { VAULT_KEY: config.vault_key }),
              ...(config.inference_key === undefined ? {} : { INFERENCE_KEY: config.inference_key }),
              ...(config.upstream_bases === undefined ? {} : { UPSTREAM_BASES: config.upstream_bases }),
              ...config.provider_keys,
              PROVIDER_KEY_ENVS: Object.keys(config.provider_keys).join(","),
            }),
          },
        },
        dev: { unsafeDirectSockets: [{ host: "127.0.0.1", port }] },
      },
      ...services.map(({ name }, at) => ({
        config: {
          name,
          compatibilityDate: COMPATIBILITY_DATE,
          compatibilityFlags: COMPATIBILITY_FLAGS,
          manifest: manifest(bundles[at] ?? ""),
          // Whose tokens agents take.
          env: variables({ EDGE_URL: url }),
        },
      })),
      {
        config: {
          name: SQL_EVALUATOR,
          compatibilityDate: COMPATIBILITY_DATE,
          manifest: manifest(sqlEvaluator ?? ""),
          exports: { Database: { type: "durable-object", storage: "sqlite" } },
          env: { DATABASE: { type: "durable-object", worker: SQL_EVALUATOR, exportName: "Database" } },
        },
      },
      {
        config: {
          name: "page",
          compatibilityDate: COMPATIBILITY_DATE,
          manifest: manifest(PAGE_WORKER),
          env: { FILES: { type: "assets" } },
          assets: { directory: page, notFoundHandling: "single-page-application" },
        },
      },
    ],
  };
}

function external(url: string): { type: "external"; address: string; http: Record<string, never> } {
  return { type: "external", address: new URL(url).host, http: {} };
}

/** Apart from the names that evaluators of one's own have. */
const SQL_EVALUATOR = "sql-evaluator";

const PAGE_WORKER = "export default { fetch: (request, env) => env.FILES.fetch(request) };";

function variables(values: Readonly<Record<string, string>>): Record<string, { type: "text"; value: string }> {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, { type: "text", value }]));
}

function manifest(contents: string) {
  return {
    mainModule: "worker.mjs",
    modulesRoot: ROOT,
    modules: { "worker.mjs": { type: "esm" as const, contents } },
  };
}

/** One ES module of a Worker with all that it imports. */
async function bundle(entry: string): Promise<string> {
  const { outputFiles } = await build({
    entryPoints: [entry],
    absWorkingDir: ROOT,
    bundle: true,
    write: false,
    format: "esm",
    target: "es2024",
    conditions: ["workerd", "worker", "browser"],
    mainFields: ["browser", "module", "main"],
    external: ["cloudflare:*", "node:*"],
    logLevel: "silent",
  });
  return outputFiles[0]?.text ?? "";
}

/** @throws FulgurError ERR_PORT_TAKEN */
function freePort(port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", (cause) => {
      reject(
        new FulgurError(
          "ERR_PORT_TAKEN",
          `port ${port} of 127.0.0.1 is taken; stop what listens there or choose another with --port-base`,
          { cause },
        ),
      );
    });
    server.listen({ host: "127.0.0.1", port }, () => {
      const address = server.address();
      server.close(() => resolve(typeof address === "object" && address !== null ? address.port : port));
    });
  });
}

async function runScheduled(runtime: Miniflare): Promise<void> {
  try {
    const edge = await runtime.getWorker("edge");
    await edge.scheduled({ cron: "* * * * *" });
  } catch (thrown) {
    process.stderr.write(`edge: the sweep failed: ${messageOf(thrown)}\n`);
  }
}

async function main(): Promise<void> {
  const text = process.env["FULGUR_EDGE_CONFIG"] ?? (await new Response(process.stdin).text());
  const edge = await startEdge(parseConfig(JSON.parse(text)));
  const stop = (): void => {
    void edge.stop().then(() => process.exit(0));
  };
  for (const signal of ["SIGTERM", "SIGINT"] as const) {
    // Miniflare's own handler ends the process at once, with 143.
    process.removeAllListeners(signal);
    process.once(signal, stop);
  }
  process.stdout.write(`edge listening on ${edge.url}\n`);
}

if (import.meta.main) {
  main().catch((thrown: unknown) => {
    process.stderr.write(`${messageOf(thrown)}\n`);
    process.exit(1);
  });
}
