import { FulgurError, messageOf } from "#shared/errors.ts";
import { packIds, unpackIds } from "#shared/packed.ts";
import { cutPrompt, type EarlierCall } from "#shared/prompt-prefix.ts";
import { recordCall, type CallRecord } from "#shared/store/calls.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { recordRewards } from "#shared/store/rewards.ts";
import type { Statement, StoreWriter } from "#shared/store/statement.ts";
import { parseServedName, parseVersionName, servedName, versionName, type Mode } from "#shared/words.ts";
import type { AgentConfig } from "../config.ts";
import type { Counters } from "../counters.ts";
import type { RoutedModel, TenantDirectory } from "../directory.ts";
import { RetryLaterError, statusOf } from "../http-errors.ts";
import { airRewards } from "../record/air.ts";
import { toolCallsOf } from "../record/tool-results.ts";
import { redactCall } from "../record/redact.ts";
import { withoutContent, type LiveCaller, type Sessions } from "../session.ts";
import { storeAway, type Admission } from "./admission.ts";
import type { Json } from "./answer.ts";
import type { Capture, CallEnd } from "./capture.ts";
import { inferenceBody, type ChatRequest } from "./chat/request.ts";
import type { Limits } from "./limits.ts";
import type { PromptMemory } from "./prompt-memory.ts";
import type { ProviderMemory } from "./provider/memory.ts";
import type { Resolver } from "./resolve.ts";
import { temperatureOf } from "./sampled-body.ts";
import { responseId } from "./responses/ids.ts";
import type { InferenceServers, Reach } from "./servers.ts";
import { askInference, UpstreamError } from "./upstream.ts";

/** One LLM call on its way: asked of inference, recorded, whatever dialect it came in. */

/** What the proxy needs of the world around it. */
export interface ProxyDeps {
  readonly servers: InferenceServers;
  /** Reaches the servers' other side. */
  readonly reach: Reach;
  /** Who is calling, by the request's key or token and what its body says of a session. */
  readonly callerOf: (request: Request, body: unknown) => Promise<Caller>;
  /** Notes ids that an answer gave out. */
  readonly issued: Sessions["issued"];
  readonly agents: Readonly<Record<string, AgentConfig>>;
  /** Where an agent's model name leads. */
  readonly route: TenantDirectory["route"];
  readonly db: () => StoreDb;
  readonly writer: StoreWriter;
  readonly admission: Pick<Admission, "admit">;
  readonly resolver: Resolver;
  readonly prompts: PromptMemory;
  readonly counters: Counters;
  /** Reaches inference. */
  readonly fetch: typeof fetch;
  /** Reaches providers. */
  readonly fetchProvider: typeof fetch;
  readonly providerMemory: ProviderMemory;
  readonly now: () => number;
  readonly limits: Limits;
  /** Keeps work alive after the client has gone. */
  readonly waitUntil: (work: Promise<unknown>) => void;
}

export type Caller = LiveCaller;

/** The client hung up. */
export class ClientGoneError extends Error {
  override readonly name = "ClientGoneError";
}

/** One call on its way. */
export interface Call {
  readonly deps: ProxyDeps;
  readonly caller: Caller;
  /** What is asked, or as much of it as rewards are read from. */
  readonly chat: ChatRequest;
  readonly route: RoutedModel;
  readonly capture: Capture;
  /** Aborted, by a {@link ClientGoneError}, when the client has gone, and where nobody answered in time. */
  readonly ending: AbortController;
  readonly failOpen: boolean;
}

/** What inference is asked, where it is not a chat. */
export interface OwnPath {
  readonly path: "/v1/completions";
  /** @param model the name that inference serves the version under */
  body(model: string, mode: Mode): string;
  /** What inference answers, or a chunk of it, as a chat's. */
  asChat(answer: Json): Json;
}

/**
 * Where a model name of the rollout's agent leads. A `policy@version` that the map does not have stands for itself. One that
 * says whose it is, as inference knows versions, is nobody's to ask for, though the map may take any name.
 * @throws FulgurError ERR_UNKNOWN_POLICY
 */
export async function routeOf(deps: ProxyDeps, { rollout }: Caller, modelAsked: string): Promise<RoutedModel> {
  if (!isMapped(deps, rollout.agent, modelAsked)) {
    const named = parseVersionName(modelAsked);
    if (named !== undefined) return { kind: "policy", policy: named.policy, role: "main" };
    if (parseServedName(modelAsked) !== undefined) {
      throw new FulgurError(
        "ERR_UNKNOWN_POLICY",
        `there is no policy ${modelAsked}; GET /v1/policies lists what there is`,
      );
    }
  }
  return deps.route(rollout.agent, modelAsked);
}

function isMapped({ agents }: ProxyDeps, agent: string, modelAsked: string): boolean {
  const models = Object.hasOwn(agents, agent) ? agents[agent]?.models : undefined;
  return models !== undefined && Object.hasOwn(models, modelAsked);
}

/** Resolves the version and asks inference for exactly it. */
export async function ask<T>(
  call: Call,
  read: (response: Response) => Promise<T> | T,
  own?: Pick<OwnPath, "path" | "body">,
): Promise<T> {
  const { deps, caller, chat, route, capture, ending } = call;
  const { principal, rollout } = caller;
  if (route.kind !== "policy") throw new FulgurError("ERR_INTERNAL", `model ${chat.model} leads to no policy`);
  const target = await deps.resolver.resolve({
    db: deps.db,
    principal,
    rollout,
    route,
    modelAsked: chat.model,
    now: deps.now(),
    later: deps.waitUntil,
  });
  capture.target = target;
  capture.temperature = temperatureOf(chat);
  const path = own?.path ?? "/v1/chat/completions";
  const model = servedName(principal.tenantId, target.policy, target.version);
  const servers = deps.servers.forCall(
    { tenantId: principal.tenantId, ...target },
    { rolloutId: rollout.rolloutId, reach: deps.reach },
  );
  const { value, attempts } = await askInference({
    url: () => servers.url() + path,
    failed: servers.failed,
    maxAttempts: servers.maxAttempts,
    body: own === undefined ? inferenceBody(chat, model, rollout.mode) : own.body(model, rollout.mode),
    names: { [model]: versionName(target.policy, target.version) },
    fetch: deps.fetch,
    ending,
    limits: deps.limits,
    read: (response) => {
      capture.firstByteAt = deps.now();
      return read(response);
    },
  });
  servers.answered();
  capture.upstreamAttempts = attempts;
  return value;
}

/** @throws UpstreamError when another model answered than the one asked: a wrong version is an error, never a guess */
export function checkModel(capture: Capture): void {
  if (!capture.answeredByAnother || capture.target === undefined) return;
  const asked = versionName(capture.target.policy, capture.target.version);
  throw broken(capture, `it was asked for ${asked} and answered as ${capture.answeredAs ?? "no model"}`);
}

export function broken(capture: Capture, what: string): UpstreamError {
  const who = capture.provider === null ? "inference" : `provider ${capture.provider}`;
  return new UpstreamError("ERR_UPSTREAM", `${who} failed: ${what}`, {
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
    const recorded = recordOf(call, { ...end, now: deps.now() });
    await deps.writer.append([unitOf(call, recorded.row)]);
    // Only now may a later prompt point at it.
    if (recorded.tokens !== undefined) deps.prompts.remember(attemptKey(call), recorded.tokens);
    deps.issued(caller, issuedIds(capture), deps.now());
    return { "x-fulgur-call": capture.start.id, ...recordingHeaders(caller) };
  } catch (cause) {
    if (rollout.mode !== "live" || !failOpen) throw storeAway(cause);
    deps.counters.add("records_lost", 1);
    return { "x-fulgur-call": capture.start.id, "x-fulgur-record": "lost" };
  }
}

/** Ids in an answer by which a later request may carry on from it. */
function issuedIds({ start, message }: Capture): string[] {
  const called = toolCallsOf(message).map(({ id }) => id);
  return start.dialect === "responses" ? [responseId(start.id), ...called] : called;
}

/** What the agent is told where its call is not stored in full. */
export function recordingHeaders({ recording }: Caller): Record<string, string> {
  return recording === "full" ? {} : { "x-fulgur-record": recording };
}

/** The row to store, redacted where the agent's live traffic is, and what later prompts of the attempt may begin with. */
function recordOf(call: Call, end: CallEnd): { readonly row: CallRecord; readonly tokens: EarlierCall | undefined } {
  const { deps, caller, capture } = call;
  const { rollout } = caller;
  const whole = capture.record(end);
  if (caller.recording === "unsampled") return { row: withoutContent(whole), tokens: undefined };
  const rules = rollout.mode === "live" ? (agentOf(call)?.live.redact ?? []) : [];
  if (rules.length > 0) return { row: redactCall(whole, rules), tokens: undefined };
  if (!(whole.promptTokenIds instanceof Uint8Array)) return { row: whole, tokens: undefined };
  const prompt = unpackIds(whole.promptTokenIds);
  const response = whole.responseTokenIds instanceof Uint8Array ? unpackIds(whole.responseTokenIds) : new Int32Array();
  const tokens = new Int32Array(prompt.length + response.length);
  tokens.set(prompt);
  tokens.set(response, prompt.length);
  const { prefixCallId, prefixTokens, rest } = cutPrompt(prompt, deps.prompts.last(attemptKey(call)));
  const row = prefixCallId === null ? whole : { ...whole, prefixCallId, prefixTokens, promptTokenIds: packIds(rest) };
  return { row, tokens: { id: whole.id, tokens } };
}

function attemptKey({ caller: { rollout } }: Call): string {
  return `${rollout.rolloutId}:${rollout.attempt}`;
}

function agentOf({ deps, caller: { rollout } }: Call): AgentConfig | undefined {
  return Object.hasOwn(deps.agents, rollout.agent) ? deps.agents[rollout.agent] : undefined;
}

/** The call and what its request tells of earlier tool calls. */
function unitOf(call: Call, row: CallRecord): Statement[] {
  const { caller, chat, capture } = call;
  const { rollout, principal } = caller;
  const { messages } = chat;
  // Most requests of a rollout's first turns have none, and looking closer at each message is not free.
  if (caller.recording === "unsampled" || !messages.some(({ role }) => role === "tool")) return recordCall(row);
  const agent = agentOf(call);
  const rewards = airRewards(messages, {
    tenantId: principal.tenantId,
    rolloutId: rollout.rolloutId,
    attempt: rollout.attempt,
    tools: agent?.tools ?? {},
    success: agent?.success ?? {},
    now: capture.start.startedAt,
  });
  return [...recordCall(row), ...recordRewards(rewards)];
}

/** Records a call that failed, unless nobody was asked; returns what the client is to be told. */
export async function recordFailure(call: Call, thrown: unknown): Promise<unknown> {
  const { capture } = call;
  if (capture.target === undefined && capture.provider === null) return thrown;
  if (thrown instanceof UpstreamError) capture.upstreamAttempts = thrown.attempts;
  // The record itself failed: there is nothing to try again here.
  if (thrown instanceof RetryLaterError && (thrown.code === "ERR_STORE" || thrown.code === "ERR_DISK")) return thrown;
  const gone = clientHasGone(call);
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

export function clientHasGone({ ending: { signal } }: Pick<Call, "ending">): boolean {
  return signal.reason instanceof ClientGoneError;
}

/** Tool call ids are how turns are joined later; an endpoint that sends none, or one twice, gets ours. */
export function newToolCallId(): string {
  return `call_${crypto.randomUUID().replaceAll("-", "")}`;
}
