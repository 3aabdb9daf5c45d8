import type { Mode } from "#shared/words.ts";
import type { Json } from "./answer.ts";

/** Whatever changes the distribution beyond temperature: with any of these, behaviour logprobs would not be the policy's. */
const NOT_WHILE_TRAINING = new Set([
  "frequency_penalty",
  "logit_bias",
  "min_p",
  "min_tokens",
  "presence_penalty",
  "repetition_penalty",
  "top_k",
  "top_p",
]);

/** What a chat and a completion have in common where inference samples the answer. */
export interface SampledRequest {
  readonly stream?: boolean | null | undefined;
  readonly temperature?: number | null | undefined;
}

export interface SampledOptions {
  /** Fields that inference has no use for. */
  readonly leftOut: ReadonlySet<string>;
  /** The name that inference serves the version under. */
  readonly model: string;
  readonly mode: Mode;
}

/**
 * A request's fields as inference is asked them: exactly this version, one answer, with token ids. In train mode the answer
 * is sampled from the whole distribution (top_p 1, no top_k), since that is what the loss is about.
 */
export function sampledBody(request: SampledRequest, { leftOut, model, mode }: SampledOptions): Json {
  const body: Json = {};
  for (const [key, value] of Object.entries(request)) {
    // Clients write null for "not set"; endpoints differ in whether they take it.
    if (value === null || leftOut.has(key) || (mode === "train" && NOT_WHILE_TRAINING.has(key))) continue;
    body[key] = value;
  }
  body["model"] = model;
  body["n"] = 1;
  body["temperature"] = temperatureOf(request);
  body["return_token_ids"] = true;
  // Explicit, or an endpoint may take another default from the model's generation_config.json.
  if (mode === "train") body["top_p"] = 1;
  if (mode === "train") body["top_k"] = -1;
  if (request.stream === true) body["stream_options"] = { include_usage: true };
  else delete body["stream_options"];
  return body;
}

/** OpenAI's default is 1. */
export function temperatureOf({ temperature }: SampledRequest): number {
  return temperature ?? 1;
}
