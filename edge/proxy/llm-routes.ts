import { errorResponse } from "../http-errors.ts";
import type { ProxyDeps } from "./call.ts";
import { chatCompletions } from "./chat/chat.ts";
import { completionsDialect } from "./completions/completions.ts";
import type { Dialect } from "./dialect.ts";
import { embeddingsDialect } from "./embeddings.ts";
import { messagesDialect } from "./messages/messages.ts";
import { responses } from "./responses/responses.ts";
import { translatedCall } from "./translated/translated.ts";

/** One path of the LLM wire. */
export interface LlmRoute {
  answer(deps: ProxyDeps, request: Request): Promise<Response>;
  /** Any failure in the words that the path's clients read. */
  errorResponse(thrown: unknown): Response;
}

function translated(dialect: Dialect): LlmRoute {
  return {
    answer: (deps, request) => translatedCall(deps, { request, dialect }),
    errorResponse: (thrown) => dialect.errorResponse(thrown),
  };
}

/** Every path that is posted to, after its prefix. */
export const LLM_ROUTES: ReadonlyMap<string, LlmRoute> = new Map([
  ["/v1/chat/completions", { answer: chatCompletions, errorResponse }],
  ["/v1/completions", translated(completionsDialect)],
  ["/v1/responses", translated(responses)],
  ["/v1/messages", translated(messagesDialect)],
  ["/v1/embeddings", translated(embeddingsDialect)],
]);
