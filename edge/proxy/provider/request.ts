import { isObject, type Json } from "../answer.ts";
import type { ChatMessage, DialectName } from "../dialect.ts";
import { recordedToolResults } from "../../record/tool-results.ts";

/** A request of an agent as its provider gets it: the same, but for the model, the key and what is not the provider's business. */

/** Paths of the dialects under an API's base. */
const PATHS: Readonly<Record<DialectName, string>> = {
  chat: "/chat/completions",
  completions: "/completions",
  responses: "/responses",
  messages: "/messages",
  embeddings: "/embeddings",
};

/**
 * Where a provider takes a dialect. A base URL without a path is that of the host, and its API is under `/v1`; one with a
 * path is complete as OpenAI's clients take it, where Anthropic's add the `/v1` that theirs does not have.
 */
export function providerUrl(baseUrl: string, dialect: DialectName): string {
  const bare = new URL(baseUrl).pathname === "/";
  const hasVersion = /\/v\d+[a-z0-9]*$/.test(baseUrl);
  const base = bare || (dialect === "messages" && !hasVersion) ? `${baseUrl.replace(/\/$/, "")}/v1` : baseUrl;
  return base + PATHS[dialect];
}

/** Headers that say how a dialect is meant; no others of the agent's go on, least of all its token. */
const PASSED_ON = ["accept", "anthropic-beta", "anthropic-version", "openai-beta"];

export function providerHeaders(given: Headers, dialect: DialectName, apiKey: string | null): Headers {
  const headers = new Headers({ "content-type": "application/json" });
  for (const name of PASSED_ON) {
    const value = given.get(name);
    if (value !== null) headers.set(name, value);
  }
  if (dialect === "messages") {
    if (!headers.has("anthropic-version")) headers.set("anthropic-version", "2023-06-01");
    if (apiKey !== null) headers.set("x-api-key", apiKey);
  } else if (apiKey !== null) {
    headers.set("authorization", `Bearer ${apiKey}`);
  }
  return headers;
}

/** Headers of a provider's answer that its client is given: what it says of itself to a person, and of its limits. */
const GIVEN_BACK = /^(request-id|x-request-id|openai-(processing-ms|version)|(x|anthropic)-ratelimit-[a-z-]+)$/;

export function givenBack(headers: Headers): Record<string, string> {
  return Object.fromEntries([...headers].filter(([name]) => GIVEN_BACK.test(name)));
}

/**
 * The tool results that a request shows, as chat messages: what rewards are read from, whatever else of the request a
 * policy could not be given.
 */
export function toolMessages(dialect: DialectName, body: Json): ChatMessage[] {
  if (dialect === "chat") {
    const { messages } = body;
    return Array.isArray(messages) ? (messages as readonly unknown[]).filter(isMessage) : [];
  }
  return recordedToolResults(dialect, body).flatMap(({ toolCallId, tool, text, failed }): ChatMessage[] =>
    tool === undefined
      ? []
      : [
          {
            role: "tool",
            tool_call_id: toolCallId,
            name: tool,
            content: failed ? JSON.stringify({ error: text === "" ? "the tool failed without a word" : text }) : text,
          },
        ],
  );
}

function isMessage(value: unknown): value is ChatMessage {
  return isObject(value) && typeof value["role"] === "string";
}
