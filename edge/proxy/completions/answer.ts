import { isObject, type Json } from "../answer.ts";
import type { Answer, AnswerEncoder, AnswerEnd, AnswerHead } from "../dialect.ts";
import type { CompletionsRequest } from "./request.ts";
import { errorBody } from "../../http-errors.ts";
import { DONE, event } from "../sse.ts";

/** An answer to a completion request, whole and as events, and inference's own read as if it were a chat's. */

/**
 * A completion of inference, or a chunk of one, as a chat's: what follows reads one form. What an agent may have asked for
 * that chats do not have, the token ids and log-probabilities of completions, goes along in the choice's `logprobs`.
 */
export function chatOfCompletion(answer: Json): Json {
  const { choices, ...rest } = answer;
  if (!Array.isArray(choices)) return rest;
  const given: readonly unknown[] = choices;
  return { ...rest, choices: given.filter(isObject).map((choice) => chatChoice(choice, rest["prompt_token_ids"])) };
}

function chatChoice({ text, logprobs, ...rest }: Json, promptIds: unknown): Json {
  const said = { role: "assistant", content: typeof text === "string" ? text : "" };
  const own: Own = {
    logprobs: isObject(logprobs) ? logprobs : null,
    tokenIds: rest["token_ids"] ?? null,
    promptIds: promptIds ?? rest["prompt_token_ids"] ?? null,
  };
  return { ...rest, message: said, delta: said, logprobs: { content: chatLogprobs(own.logprobs ?? {}), ...own } };
}

/** What a completion's choice says of its tokens. */
interface Own extends Json {
  readonly logprobs: Json | null;
  readonly tokenIds: unknown;
  readonly promptIds: unknown;
}

function chatLogprobs({ tokens, token_logprobs: values }: Json): Json[] | null {
  if (!Array.isArray(values)) return null;
  const texts: readonly unknown[] = Array.isArray(tokens) ? tokens : [];
  return values.map((logprob: unknown, at) => ({ token: texts[at] ?? null, logprob }));
}

/** The answer as OpenAI gives it; log-probabilities and token ids only where the agent asked for them. */
export function completionsAnswer(answer: Answer, request: CompletionsRequest): Json {
  const { message, finishReason, logprobs: own, usage } = answer;
  return {
    ...completionsHead(answer),
    choices: [completionsChoice(message.content ?? "", { own, finishReason, request })],
    usage,
    ...(request.return_token_ids === true ? { prompt_token_ids: own?.["promptIds"] ?? null } : {}),
  };
}

/** The same as events. What the last chunk says of why it ended is a chunk of its own, after the record. */
export function completionsEncoder(head: AnswerHead, request: CompletionsRequest): AnswerEncoder {
  const wantsEach = typeof request.logprobs === "number" || request.return_token_ids === true;
  const chunk = (text: string, own: Json | null, finishReason: string | null): string =>
    event(
      JSON.stringify({ ...completionsHead(head), choices: [completionsChoice(text, { own, finishReason, request })] }),
    );
  return {
    start: () => "",
    text: (delta, own) => (delta === "" && !wantsEach ? "" : chunk(delta, own, null)),
    // Inference's completions are texts alone.
    reasoning: () => "",
    toolCall: () => "",
    end({ finishReason, usage }: AnswerEnd) {
      const counted =
        request.stream_options?.include_usage === true
          ? event(JSON.stringify({ ...completionsHead(head), choices: [], usage }))
          : "";
      return chunk("", null, finishReason) + counted + DONE;
    },
    fail: (thrown) => event(JSON.stringify(errorBody(thrown))),
  };
}

/** What does not depend on what is said. */
export function completionsHead({ id, startedAt, model }: AnswerHead): Json {
  return {
    id: `cmpl-${id.slice(id.indexOf("_") + 1)}`,
    object: "text_completion",
    created: Math.floor(startedAt / 1000),
    model,
  };
}

interface ChoiceOptions {
  /** What {@link chatOfCompletion} kept of its tokens. */
  readonly own: Json | null;
  readonly finishReason: string | null;
  readonly request: CompletionsRequest;
}

function completionsChoice(text: string, { own, finishReason, request }: ChoiceOptions): Json {
  const wantsIds = request.return_token_ids === true;
  return {
    index: 0,
    text,
    logprobs: typeof request.logprobs === "number" ? (own?.["logprobs"] ?? null) : null,
    finish_reason: finishReason,
    ...(wantsIds ? { token_ids: own?.["tokenIds"] ?? null } : {}),
    // Of a stream the first chunk has them.
    ...(wantsIds && Array.isArray(own?.["promptIds"]) ? { prompt_token_ids: own["promptIds"] } : {}),
  };
}
