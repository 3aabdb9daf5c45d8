import { newId } from "#shared/ids.ts";
import type { RoutedModel } from "../directory.ts";
import type { MostOfCall } from "./admission.ts";
import type { Json } from "./answer.ts";
import { ClientGoneError, recordFailure, type Call, type Caller, type ProxyDeps } from "./call.ts";
import { Capture } from "./capture.ts";
import type { ChatRequest } from "./chat/request.ts";
import type { DialectName } from "./dialect.ts";

/** A request that is understood and whose model is known. */
export interface Asked {
  readonly request: Request;
  /** Its body as it came. */
  readonly requestText: string;
  readonly dialect: DialectName;
  readonly chat: ChatRequest;
  /** The request's own fields, where `chat` has not all of them. */
  readonly body?: Json;
  readonly route: RoutedModel;
  /** Milliseconds since the epoch. */
  readonly startedAt: number;
}

export interface Answered {
  readonly response: Response;
  /** Of a stream: ends when everything was sent and recorded. A whole answer is recorded already. */
  readonly finished?: Promise<void>;
}

/**
 * One call from its admission to its record, whatever answers it.
 * @param answer may throw; the failure is recorded
 */
export async function handle(
  deps: ProxyDeps,
  caller: Caller,
  asked: Asked,
  answer: (call: Call) => Promise<Answered>,
): Promise<Response> {
  const { principal, rollout } = caller;
  const { request, requestText, dialect, chat, route, startedAt } = asked;
  const { db, writer, waitUntil: later } = deps;
  const most = (): MostOfCall => mostOf(asked);
  const seat = await deps.admission.admit({ principal, rollout, db, writer, most, now: deps.now(), later });
  const capture = new Capture({
    id: newId("call"),
    tenantId: principal.tenantId,
    rolloutId: rollout.rolloutId,
    attempt: rollout.attempt,
    mode: rollout.mode,
    dialect,
    modelAsked: chat.model,
    requestText,
    startedAt,
  });
  capture.role = route.role;
  if (route.kind === "provider") capture.usageModel = usageName(route);
  const call: Call = { deps, caller, chat, route, capture, ending: new AbortController(), failOpen: seat.failOpen };
  // In production this fires when the client leaves (enable_request_signal); local workerd shows it only where a stream is written.
  request.signal.addEventListener("abort", () => call.ending.abort(new ClientGoneError()));
  const answered = answer(call).catch(async (thrown: unknown) => {
    throw await recordFailure(call, thrown);
  });
  const settled = answered
    .then(({ finished }) => finished)
    .finally(() => {
      seat.leave(capture.tokens);
      deps.limits.end();
    })
    .catch(() => undefined);
  // A client that hangs up must not take the record with it.
  deps.waitUntil(settled);
  return (await answered).response;
}

/** What a completion may take where its request names no limit; a longer one is settled as what it took. */
const DEFAULT_COMPLETION_TOKENS = 4096;

/**
 * The most that a call may take. A character is hardly ever more than a token, and the JSON around a message is longer than
 * what a chat template puts around it.
 */
function mostOf({ requestText, dialect, chat, body = chat, route }: Asked): MostOfCall {
  // A request that carries on from an earlier response is shorter than the conversation that it asks about.
  const conversation = dialect === "responses" ? JSON.stringify(chat.messages).length : 0;
  return {
    model: usageName(route),
    promptTokens: Math.max(requestText.length, conversation),
    completionTokens: dialect === "embeddings" ? 0 : completionLimit(body),
  };
}

/** As usage names a model; a policy's version is not known yet. */
function usageName(route: RoutedModel): string {
  return route.kind === "policy" ? route.policy : `${route.provider.name}/${route.model}`;
}

/** By whichever name the dialect calls it, for each of the answers that are asked for. */
export function completionLimit(body: Json): number {
  const limits = [body["max_completion_tokens"], body["max_output_tokens"], body["max_tokens"]];
  const limit = limits.find((value) => typeof value === "number" && value >= 0) ?? DEFAULT_COMPLETION_TOKENS;
  const answers = body["n"];
  return Number(limit) * (typeof answers === "number" && answers > 1 ? answers : 1);
}
