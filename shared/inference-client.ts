import { z } from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";

/** What is asked of inference besides answers: to load and unload versions, and to show that one answers. */
export interface InferenceClient {
  /**
   * Repeatable. @throws FulgurError ERR_CHECKPOINT when the artifact is refused or the name is another artifact's,
   * ERR_UPSTREAM when inference is away
   */
  load(name: string, folder: string): Promise<void>;
  /** Repeatable; the version's last request has ended before it goes. */
  unload(name: string): Promise<void>;
  /** One token by the version. @throws FulgurError ERR_UPSTREAM when none answers, ERR_CHECKPOINT when another name did */
  prove(name: string): Promise<void>;
}

/** One server, which can also be looked at. */
export interface InferenceServerClient extends InferenceClient {
  readonly url: string;
  /** Whether it says so itself, within seconds; never rejects. */
  isHealthy(): Promise<boolean>;
  /** Names that it answers to now. @throws FulgurError ERR_UPSTREAM */
  names(): Promise<ReadonlySet<string>>;
}

export interface InferenceClientOptions {
  readonly baseUrl: string;
  /** The key for a request: a token with scopes `trainer` (to load) and `inference` (to prove), or a static one. */
  readonly key?: () => Promise<string>;
  /** Of one request; unloading waits for running requests. */
  readonly timeoutMs?: number;
  readonly healthTimeoutMs?: number;
  readonly fetch?: typeof fetch;
  readonly pause?: (ms: number) => Promise<void>;
}

const completionSchema = z.object({ model: z.string(), choices: z.array(z.unknown()).min(1) });
const modelsSchema = z.object({
  data: z.array(z.looseObject({ id: z.string(), root: z.string().nullish(), parent: z.string().nullish() })),
});
type ModelCard = z.infer<typeof modelsSchema>["data"][number];

const DRAIN_LOOK_MS = 100;

/** Management in the vLLM dialect: the built-in endpoint and vLLM servers understand the same. */
export function inferenceClient(options: InferenceClientOptions): InferenceServerClient {
  const { baseUrl, key, timeoutMs = 60_000, healthTimeoutMs = 3000, fetch: send = fetch } = options;
  const { pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms)) } = options;

  async function ask(
    path: string,
    { body, withinMs = timeoutMs }: { readonly body?: unknown; readonly withinMs?: number } = {},
  ): Promise<{ status: number; text: string }> {
    const method = body === undefined ? "GET" : "POST";
    try {
      const headers = new Headers(body === undefined ? {} : { "content-type": "application/json" });
      if (key !== undefined) headers.set("authorization", `Bearer ${await key()}`);
      const response = await send(`${baseUrl}${path}`, {
        method,
        headers,
        signal: AbortSignal.timeout(withinMs),
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
      return { status: response.status, text: await response.text() };
    } catch (cause) {
      throw new FulgurError(
        "ERR_UPSTREAM",
        `inference at ${baseUrl} did not answer ${method} ${path} (${messageOf(cause)}); is it running?`,
        { cause },
      );
    }
  }

  async function cards(): Promise<ModelCard[]> {
    const { status, text } = await ask("/v1/models");
    if (status !== 200) throw refusal(`inference at ${baseUrl} does not list its models`, status, text);
    const models = modelsSchema.safeParse(jsonOf(text));
    if (models.success) return models.data.data;
    throw new FulgurError("ERR_UPSTREAM", `inference at ${baseUrl} lists its models in another form than vLLM does`);
  }

  /** vLLM lets running requests end on an adapter that it has unloaded, but says of none whether it still runs: its metrics do. */
  async function drained(name: string): Promise<void> {
    for (let waitedMs = 0; waitedMs < timeoutMs; waitedMs += DRAIN_LOOK_MS) {
      const { status, text } = await ask("/metrics");
      if (status !== 200 || !adaptersAtWork(text).has(name)) return;
      await pause(DRAIN_LOOK_MS);
    }
  }

  return {
    url: baseUrl,

    async load(name, folder) {
      const { status, text } = await ask("/v1/load_lora_adapter", { body: { lora_name: name, lora_path: folder } });
      if (status === 200) return;
      // vLLM refuses a name that is loaded, or that its base model was started with (--served-model-name).
      const isThere = status === 400 && /already been loaded|already loaded|conflicts with a served base/i.test(text);
      if (!isThere) throw refusal(`inference at ${baseUrl} did not load ${name} from ${folder}`, status, text);
      const card = (await cards()).find(({ id }) => id === name);
      // A base model may have been started from a copy; an adapter comes from the folder or is another one.
      if (card === undefined || typeof card.parent !== "string" || card.root === folder) return;
      throw new FulgurError(
        "ERR_CHECKPOINT",
        `inference at ${baseUrl} has ${name} from ${String(card.root)}, and it was to be loaded from ${folder}; a version's name is never reused: restart that server, or publish under the next number`,
      );
    },

    async unload(name) {
      await drained(name);
      const { status, text } = await ask("/v1/unload_lora_adapter", { body: { lora_name: name } });
      if (status === 200 || status === 404 || (status === 400 && /not (found|loaded)|cannot be found/i.test(text)))
        return;
      throw refusal(`inference at ${baseUrl} did not unload ${name}`, status, text);
    },

    async prove(name) {
      const body = { model: name, prompt: "a", max_tokens: 1, temperature: 0 };
      const { status, text } = await ask("/v1/completions", { body });
      if (status !== 200) throw refusal(`${name} does not answer at ${baseUrl}`, status, text);
      const parsed = completionSchema.safeParse(jsonOf(text));
      if (!parsed.success || parsed.data.model !== name) {
        const came = parsed.success ? parsed.data.model : "an answer of another form";
        throw new FulgurError(
          "ERR_CHECKPOINT",
          `${name} was asked for and ${came} answered at ${baseUrl}; calls are not routed to it`,
        );
      }
    },

    async isHealthy() {
      try {
        return (await ask("/health", { withinMs: healthTimeoutMs })).status === 200;
      } catch {
        return false;
      }
    },

    names: async () => new Set((await cards()).map(({ id }) => id)),
  };
}

/**
 * The adapters that vLLM is sampling from or has requests waiting for, from its metrics; none where a server does not tell.
 * Each state that it has been in is a line of its own, whose value is when it was last in it.
 */
function adaptersAtWork(metrics: string): ReadonlySet<string> {
  let latest = { at: -Infinity, names: "" };
  for (const [, labels = "", value] of metrics.matchAll(/^vllm:lora_requests_info\{(.*)\} (\S+)$/gm)) {
    const at = Number(value);
    if (at < latest.at) continue;
    const ofLabel = (label: string): string => new RegExp(`${label}="([^"]*)"`).exec(labels)?.[1] ?? "";
    latest = { at, names: `${ofLabel("running_lora_adapters")},${ofLabel("waiting_lora_adapters")}` };
  }
  return new Set(latest.names.split(",").filter((name) => name !== ""));
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function refusal(what: string, status: number, text: string): FulgurError {
  const code = status === 429 || status >= 500 ? "ERR_UPSTREAM" : "ERR_CHECKPOINT";
  return new FulgurError(code, `${what}: ${status} ${text.slice(0, 300)}`);
}
