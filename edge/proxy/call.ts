import { messageOf } from "#shared/errors.ts";
import { recordCall } from "#shared/store/calls.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { recordRewards } from "#shared/store/rewards.ts";
import type { Statement, StoreWriter } from "#shared/store/statement.ts";
import type { Principal, RolloutClaims } from "#shared/tokens.ts";
import { versionName } from "#shared/words.ts";
import type { AgentConfig } from "../config.ts";
import type { Counters } from "../counters.ts";
import { RetryLaterError, statusOf } from "../http-errors.ts";
import { airRewards } from "../record/air.ts";
import { storeAway, type Admission } from "./admission.ts";
import type { Capture, CallEnd } from "./capture.ts";
import { inferenceBody, temperatureOf, type ChatRequest } from "./chat-request.ts";
import type { Resolver } from "./resolve.ts";
import { askInference, UpstreamError } from "./upstream.ts";

/** One LLM call on its way: asked of inference, recorded, whatever dialect it came in. */

/** What the proxy needs of the world around it. */
export interface ProxyDeps {
  readonly inferenceUrl: string;
  readonly agents: Readonly<Record<string, AgentConfig>>;
  readonly db: () => StoreDb;
  readonly writer: StoreWriter;
  readonly admission: Admission;
  readonly resolver: Resolver;
  readonly counters: Counters;
  readonly fetch: typeof fetch;
  readonly now: () => number;
  /** Keeps work alive after the client has gone. */
  readonly waitUntil: (work: Promise<unknown>) => void;
}

export interface Caller {
  readonly principal: Principal;
  readonly rollout: RolloutClaims;
}

/** The client hung up. */
export class ClientGoneError extends Error {
  override readonly name = "ClientGoneError";
}

/** One call on its way. */
export interface Call {
  readonly deps: ProxyDeps;
  readonly caller: Caller;
  readonly chat: ChatRequest;
  readonly capture: Capture;
  /** Aborted when the client has gone. */
  readonly client: AbortController;
  readonly failOpen: boolean;
}

/** Resolves the version and asks inference for exactly it. */
export async function ask<T>(call: Call, read: (response: Response) => Promise<T> | T): Promise<T> {
  const { deps, caller, chat, capture, client } = call;
  const { principal, rollout } = caller;
  const agent = Object.hasOwn(deps.agents, rollout.agent) ? deps.agents[rollout.agent] : undefined;
  const target = await deps.resolver.resolve({
    db: deps.db,
    principal,
    rollout,
    agent,
    modelAsked: chat.model,
    now: deps.now(),
  });
  capture.target = target;
  capture.temperature = temperatureOf(chat);
  const { value, attempts } = await askInference({
    url: `${deps.inferenceUrl}/v1/chat/completions`,
    body: inferenceBody(chat, target, rollout.mode),
    fetch: deps.fetch,
    signal: client.signal,
    read: (response) => {
      capture.firstByteAt = deps.now();
      return read(response);
    },
  });
  capture.upstreamAttempts = attempts;
  return value;
}

/** @throws UpstreamError when another model answered than the one asked: a wrong version is an error, never a guess */
export function checkModel(capture: Capture): void {
  if (!capture.answeredByAnother || capture.target === undefined) return;
  const asked = versionName(capture.target.policy, capture.target.version);
  throw broken(capture, `it was asked for ${asked} and answered as ${capture.modelAnswered ?? "no model"}`);
}

export function broken(capture: Capture, what: string): UpstreamError {
  return new UpstreamError("ERR_UPSTREAM", `inference failed: ${what}`, {
    attempts: capture.upstreamAttempts,
  });
}

/**
 * Writes the call with its rewards as one unit and resolves when that is durable.
 * @returns headers for the answer: `x-fulgur-record: lost` on a live call that could not be stored, where the tenant
 * wants it answered all the same
 */
export async function record(call: Call, end: Omit<CallEnd, "now">): Promise<Record<string, string>> {
  const { deps, caller, capture, failOpen } = call;
  const { rollout } = caller;
  deps.counters.add("calls", 1);
  if (end.error !== null) deps.counters.add("call_errors", 1);
  try {
    await deps.writer.append([unitOf(call, { ...end, now: deps.now() })]);
    return { "x-fulgur-call": capture.start.id };
  } catch (cause) {
    if (rollout.mode !== "live" || !failOpen) throw storeAway(cause);
    deps.counters.add("records_lost", 1);
    return { "x-fulgur-call": capture.start.id, "x-fulgur-record": "lost" };
  }
}

/** The call and what its request tells of earlier tool calls. */
function unitOf({ deps, caller, chat, capture }: Call, end: CallEnd): Statement[] {
  const { rollout, principal } = caller;
  const agent = Object.hasOwn(deps.agents, rollout.agent) ? deps.agents[rollout.agent] : undefined;
  const rewards = airRewards(chat.messages, {
    tenantId: principal.tenantId,
    rolloutId: rollout.rolloutId,
    attempt: rollout.attempt,
    tools: agent?.tools ?? {},
    now: capture.start.startedAt,
  });
  return [...recordCall(capture.record(end)), ...recordRewards(rewards)];
}

/** Records a call that failed, unless inference was never asked; returns what the client is to be told. */
export async function recordFailure(call: Call, thrown: unknown): Promise<unknown> {
  const { capture } = call;
  if (capture.target === undefined) return thrown;
  if (thrown instanceof UpstreamError) capture.upstreamAttempts = thrown.attempts;
  // The record itself failed: there is nothing to try again here.
  if (thrown instanceof RetryLaterError && thrown.code === "ERR_STORE") return thrown;
  const gone = call.client.signal.aborted;
  try {
    await record(call, {
      httpStatus: gone ? 499 : statusOf(thrown),
      error: gone ? "client_disconnected" : messageOf(thrown),
    });
  } catch (cause) {
    return cause;
  }
  return thrown;
}

/** Tool call ids are how turns are joined later; an endpoint that sends none, or one twice, gets ours. */
export function newToolCallId(): string {
  return `call_${crypto.randomUUID().replaceAll("-", "")}`;
}
