import { z } from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";

/** What the trainer asks of inference: to load and unload versions, and to show that one answers. */
export interface InferenceClient {
  /** Repeatable. @throws FulgurError ERR_CHECKPOINT when the artifact is refused, ERR_UPSTREAM when inference is away */
  load(name: string, folder: string): Promise<void>;
  /** Repeatable; inference waits for the version's last request. */
  unload(name: string): Promise<void>;
  /** One token by the version. @throws FulgurError ERR_UPSTREAM when another name answered, or none */
  prove(name: string): Promise<void>;
}

export interface InferenceClientOptions {
  readonly baseUrl: string;
  /** The key for a request: a token with scopes `trainer` (to load) and `inference` (to prove), or a static one. */
  readonly key?: () => Promise<string>;
  /** Of one request; unloading waits for running requests. */
  readonly timeoutMs?: number;
  readonly fetch?: typeof fetch;
}

const completionSchema = z.object({ model: z.string(), choices: z.array(z.unknown()).min(1) });

/** Management in the vLLM dialect, so that a vLLM server takes the place of the built-in endpoint. */
export function inferenceClient(options: InferenceClientOptions): InferenceClient {
  const { baseUrl, key, timeoutMs = 60_000, fetch: send = fetch } = options;

  async function post(path: string, body: unknown): Promise<{ status: number; text: string }> {
    const authorization = key === undefined ? {} : { authorization: `Bearer ${await key()}` };
    try {
      const response = await send(`${baseUrl}${path}`, {
        method: "POST",
        headers: { "content-type": "application/json", ...authorization },
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(timeoutMs),
      });
      return { status: response.status, text: await response.text() };
    } catch (cause) {
      throw new FulgurError(
        "ERR_UPSTREAM",
        `inference at ${baseUrl} did not answer POST ${path} (${messageOf(cause)}); is it running?`,
        { cause },
      );
    }
  }

  return {
    async load(name, folder) {
      const { status, text } = await post("/v1/load_lora_adapter", { lora_name: name, lora_path: folder });
      // vLLM refuses a name that is loaded; names are never reused, so it is this very version.
      if (status === 200 || (status === 400 && /already been loaded|already loaded/i.test(text))) return;
      throw refusal(`inference did not load ${name} from ${folder}`, status, text);
    },

    async unload(name) {
      const { status, text } = await post("/v1/unload_lora_adapter", { lora_name: name });
      if (status === 200 || status === 404 || (status === 400 && /not (found|loaded)|cannot be found/i.test(text)))
        return;
      throw refusal(`inference did not unload ${name}`, status, text);
    },

    async prove(name) {
      const body = { model: name, prompt: "a", max_tokens: 1, temperature: 0 };
      const { status, text } = await post("/v1/completions", body);
      if (status !== 200) throw refusal(`${name} does not answer`, status, text);
      const parsed = completionSchema.safeParse(JSON.parse(text));
      if (!parsed.success || parsed.data.model !== name) {
        const came = parsed.success ? parsed.data.model : "an answer of another form";
        throw new FulgurError(
          "ERR_CHECKPOINT",
          `${name} was asked for and ${came} answered; calls are not routed to it`,
        );
      }
    },
  };
}

function refusal(what: string, status: number, text: string): FulgurError {
  const code = status === 429 || status >= 500 ? "ERR_UPSTREAM" : "ERR_CHECKPOINT";
  return new FulgurError(code, `${what}: ${status} ${text.slice(0, 300)}`);
}
