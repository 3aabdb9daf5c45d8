import { newId } from "#shared/ids.ts";
import type { RoutedModel } from "../directory.ts";
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
  const seat = await deps.admission.admit({ principal, rollout, db, writer, now: deps.now(), later });
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
  const call: Call = { deps, caller, chat, route, capture, client: new AbortController(), failOpen: seat.failOpen };
  // In production this fires when the client leaves; local workerd shows it only where a stream is written.
  request.signal.addEventListener("abort", () => call.client.abort(new ClientGoneError()));
  const answered = answer(call).catch(async (thrown: unknown) => {
    throw await recordFailure(call, thrown);
  });
  const settled = answered
    .then(({ finished }) => finished)
    .finally(() => seat.leave(capture.tokens.prompt + capture.tokens.completion))
    .catch(() => undefined);
  // A client that hangs up must not take the record with it.
  deps.waitUntil(settled);
  return (await answered).response;
}
