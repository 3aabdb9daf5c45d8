import type { Json } from "#shared/tables.ts";
import type { EventView } from "./wire.ts";

/**
 * Events as a trainer reads them (`format=triplet`): model requests cut down to token ids and logprobs, rewards to their
 * value; of model requests with the same prompt only the last. Never fails: events are whatever was posted.
 */
export function tripletEvents(events: readonly EventView[]): EventView[] {
  const trimmed = events.map((event) => {
    if (event.event_type === "model_request") return { ...event, data: trimRequest(event.data) };
    if (event.event_type === "reward") return { ...event, data: trimReward(event.data) };
    return event;
  });
  const lastOf = new Map<string, number>();
  const keys = trimmed.map((event) =>
    event.event_type === "model_request" ? promptKey(event.data["prompt_token_ids"]) : undefined,
  );
  for (const [at, key] of keys.entries()) if (key !== undefined) lastOf.set(key, at);
  return trimmed.filter((_, at) => {
    const key = keys[at];
    return key === undefined || lastOf.get(key) === at;
  });
}

type Fields = Readonly<Record<string, Json>>;

/** Nothing to compare by where there are no token ids: such requests all stay. */
function promptKey(ids: Json | undefined): string | undefined {
  return Array.isArray(ids) && ids.length > 0 && ids.every((token) => Number.isInteger(token))
    ? JSON.stringify(ids)
    : undefined;
}

function trimRequest(data: Fields): Fields {
  const response = data["response"];
  const server = fieldsOf(data["server"]);
  const ids = Array.isArray(response) ? idsOfChunks(response) : idsOfAnswer(fieldsOf(response));
  const error = fieldsOf(response)["error"];
  return {
    ...ids,
    server: { model: server["model"] ?? null, version: server["version"] ?? null },
    ...only(data, ["http_status", "status"]),
    ...(error === undefined ? {} : { error }),
  };
}

/** Chat answers have the prompt's ids at the top, completions in the choice. */
function idsOfAnswer(answer: Fields): Record<string, Json> {
  const [choice] = listOf(answer["choices"]);
  const fields = fieldsOf(choice);
  return {
    prompt_token_ids: given(answer["prompt_token_ids"]) ?? given(fields["prompt_token_ids"]) ?? [],
    response_token_ids: given(fields["token_ids"]) ?? [],
    response_log_probs: logprobsOf(fields["logprobs"]),
  };
}

/** A stream's chunks, as they came. */
function idsOfChunks(chunks: readonly Json[]): Record<string, Json> {
  let prompt: Json = [];
  const ids: Json[] = [];
  for (const chunk of chunks.map(fieldsOf)) {
    if (listOf(prompt).length === 0) prompt = given(chunk["prompt_token_ids"]) ?? prompt;
    ids.push(...listOf(fieldsOf(listOf(chunk["choices"])[0])["token_ids"]));
  }
  return { prompt_token_ids: prompt, response_token_ids: ids, response_log_probs: null };
}

/** One for each token, in chat's form or in completions'; null where one is missing or is no number. */
function logprobsOf(value: Json | undefined): Json {
  const { content, token_logprobs: flat } = fieldsOf(value);
  const raw = Array.isArray(content) ? content.map((item) => fieldsOf(item)["logprob"]) : flat;
  if (!Array.isArray(raw)) return null;
  const numbers: number[] = [];
  for (const item of raw) {
    const number = typeof item === "string" && item.trim() !== "" ? Number(item) : item;
    if (typeof number !== "number" || !Number.isFinite(number)) return null;
    numbers.push(number);
  }
  return numbers;
}

function trimReward(data: Fields): Fields {
  return { value: data["value"] ?? null, ...only(data, ["source", "reason"]) };
}

function only(data: Fields, names: readonly string[]): Record<string, Json> {
  return Object.fromEntries(names.flatMap((name) => (data[name] === undefined ? [] : [[name, data[name]]])));
}

/** A list is given where it is not empty. */
function given(value: Json | undefined): Json | undefined {
  return value === undefined || value === null || value === "" || (Array.isArray(value) && value.length === 0)
    ? undefined
    : value;
}

function fieldsOf(value: Json | undefined): Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
}

function listOf(value: Json | undefined): readonly Json[] {
  return Array.isArray(value) ? value : [];
}
