import type { Context } from "hono";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { newId } from "#shared/ids.ts";
import { newAglEventId, recordAglEvent } from "#shared/store/agl-events.ts";
import { readAglModels } from "#shared/store/agl-models.ts";
import { enterAgl, leaveAgl, stayAgl, type AglPauseState } from "#shared/store/agl-pause.ts";
import type { AglRollout } from "#shared/store/agl-rollouts.ts";
import { AGL_AGENT, openShadow, shadowOf } from "#shared/store/agl-shadow.ts";
import { recordCall } from "#shared/store/calls.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { readPolicy, readVersion } from "#shared/store/policies.ts";
import { readTenantSettings } from "#shared/store/tenants.ts";
import { recordRewards, type NewReward } from "#shared/store/rewards.ts";
import { lastRow, numberOf, type Statement } from "#shared/store/statement.ts";
import type { Json as StoreJson } from "#shared/tables.ts";
import type { Principal } from "#shared/tokens.ts";
import { parseVersionName, servedName, versionName } from "#shared/words.ts";
import { requestDbs, tenantDirectory, type EdgeHono } from "../../context.ts";
import { statusOf } from "../../http-errors.ts";
import { firstChoice, isObject, parseObject, readIds, type Json } from "../../proxy/answer.ts";
import { readText } from "../../proxy/body.ts";
import { ClientGoneError } from "../../proxy/call.ts";
import { Capture } from "../../proxy/capture.ts";
import { completionLimit } from "../../proxy/handle.ts";
import { chatOfCompletion } from "../../proxy/completions/answer.ts";
import { inferenceFetch } from "../../proxy/inference-fetch.ts";
import type { ProviderReader } from "../../proxy/provider/answer.ts";
import { chatReader } from "../../proxy/provider/chat.ts";
import { completionsReader } from "../../proxy/provider/completions.ts";
import { reachOf } from "../../proxy/reach.ts";
import type { ServersOfCall } from "../../proxy/servers.ts";
import { airRewards } from "../../record/air.ts";
import { gatheringWriter } from "../../record/gather.ts";
import { TtlCache } from "../../ttl-cache.ts";
import {
  allowedEndpoint,
  endpointOf,
  sendToEndpoint,
  setFields,
  type Endpoint,
  type ProxyMode,
  type SetFields,
} from "./endpoint.ts";
import type { KeptOfCall } from "./model-request.ts";
import { requireKeyAgent } from "../speaker.ts";
import { isDeep } from "./parse.ts";
import { existingAgl } from "./rollouts.ts";

/**
 * An agent's LLM call under `/proxy/rollout/…`: its rollout, attempt and mode are in the path; it goes to the endpoint that
 * the trainer registered (or to a policy of ours that it names), with token ids and, in mode train, log-probabilities, and
 * is recorded before it is answered.
 */

const PATHS = { "chat/completions": "chat", completions: "completions" } as const;
type UpstreamPath = keyof typeof PATHS;

/** Of a request's body: pictures come along. */
const MAX_BYTES = 8 * 1_048_576;
/** How long a call whose isolate died counts as under way. */
const SEAT_MS = 60_000;
const RENEW_SEAT_MS = 20_000;

/** Attempts that this isolate has opened, by shadow and name. */
const opened = new TtlCache<number>({ ttlMs: 600_000, maxEntries: 10_000 });

export interface ProxiedPath {
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly mode: string;
  readonly upstreamPath: string;
}

/** @throws FulgurError; to be answered by errors.ts' llmErrorResponse */
export async function proxiedCall(c: Context<EdgeHono>, path: ProxiedPath): Promise<Response> {
  const { parts, principal, db, writer } = c.var;
  const { tenantId } = principal;
  const { rolloutId, attemptId } = path;
  const mode = modeOf(path.mode);
  const upstreamPath = upstreamPathOf(path.upstreamPath);
  const [rollout, models, settings] = await Promise.all([
    existingAgl(db(), tenantId, rolloutId),
    readAglModels(db(), tenantId),
    readTenantSettings(db(), tenantId),
  ]);
  requireCaller(principal, rollout);
  const requestText = await readText(c.req.raw, { maxBytes: MAX_BYTES });
  const request = requestOf(requestText);
  const asked = typeof request["model"] === "string" ? request["model"] : "";
  const target = await targetOf(c, models, { asked, rolloutId });
  if (target === undefined) return unservedResponse(asked);
  const startedAt = parts.now();
  const capture = new Capture({
    id: newId("call"),
    tenantId,
    rolloutId: rollout.shadowId,
    attempt: await attemptOf(c, rollout, { tenantId, id: rolloutId, attemptId, mode }),
    mode,
    dialect: PATHS[upstreamPath],
    modelAsked: target.endpoint.model,
    requestText: requestText === "" ? "{}" : requestText,
    startedAt,
  });
  const { id: callId } = capture.start;
  const enter = enterAgl({ tenantId, callId, expiresAt: startedAt + SEAT_MS }, startedAt);
  const state = enter.read(await writer.transact(enter.statements));
  if (state.paused) return pausedResponse(state);
  const reservation = await parts.admission.budget
    .reserve({
      tenantId,
      monthly: settings?.monthly_budget,
      model: target.endpoint.model,
      promptTokens: requestText.length,
      completionTokens: completionLimit(request),
      db,
      now: startedAt,
      later: (work) => c.executionCtx.waitUntil(work),
    })
    .catch(async (thrown: unknown) => {
      await writer.append([[leaveAgl(callId)]]);
      throw thrown;
    });
  const set = setFields(target.endpoint.model, mode);
  capture.temperature = set.temperature;
  const call: ProxiedCall = { c, path, request, target, capture, set };
  const renewing = setInterval(() => {
    // One that is missed is made up for by the next.
    writer.append([[stayAgl({ callId, expiresAt: parts.now() + SEAT_MS })]]).catch(() => undefined);
  }, RENEW_SEAT_MS);
  const answered = answer(call, upstreamPath).finally(() => {
    clearInterval(renewing);
    reservation?.settle(capture.tokens.prompt, capture.tokens.completion);
  });
  // A client that hangs up must not take the record with it.
  c.executionCtx.waitUntil(answered.catch(() => undefined));
  return answered;
}

interface ProxiedCall {
  readonly c: Context<EdgeHono>;
  readonly path: ProxiedPath;
  readonly request: Json;
  readonly target: Target;
  readonly capture: Capture;
  /** What of the request was set on its way. */
  readonly set: SetFields;
}

async function answer(call: ProxiedCall, upstreamPath: UpstreamPath): Promise<Response> {
  const { c, request, target, capture, set } = call;
  const { parts } = c.var;
  const gone = new AbortController();
  c.req.raw.signal.addEventListener("abort", () => gone.abort(new ClientGoneError()));
  try {
    // Answered whole, whatever the agent wants: the endpoint's ids come with its last token anyway.
    const { stream, stream_options: streamOptions, ...rest } = request;
    const given = await sendToEndpoint({
      url: () => `${target.base()}/${upstreamPath}`,
      failed: target.failed,
      body: JSON.stringify({ ...rest, ...set, model: target.model }),
      fetch: target.fetch,
      signal: gone.signal,
    });
    capture.firstByteAt = parts.now();
    capture.upstreamAttempts = given.attempts;
    if (given.status >= 400) return await refused(call, given.status, inOwnNames(target, given.body));
    const routedExperts = takeRoutedExperts(given.body);
    const facts = upstreamPath === "completions" ? chatOfCompletion(given.body) : given.body;
    given.body["usage"] ??= usageOf(facts);
    const reader = readerOf(call, isObject(streamOptions) && streamOptions["include_usage"] === true);
    const asked = withoutExtras(given.body, request);
    if (asked["model"] === target.model) asked["model"] = target.endpoint.model;
    const whole = stream === true ? undefined : reader.whole(asked);
    const events = stream === true ? reader.take(JSON.stringify(asked)) + reader.ending() : "";
    capture.takeAnswer(facts, assistantMessage(reader));
    capture.finishReason ??= reader.gathered.finishReason;
    // Guessed where the endpoint gave neither usage nor ids.
    if (capture.tokens.completion === 0) capture.usage ??= reader.gathered.usage;
    checkVersion(call);
    await record(
      call,
      { httpStatus: 200, error: null },
      routedExperts === undefined ? {} : { routed_experts: routedExperts },
    );
    if (whole !== undefined) return Response.json(whole, { headers: { "x-fulgur-call": capture.start.id } });
    return new Response(events, {
      headers: { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" },
    });
  } catch (thrown) {
    const left = gone.signal.aborted;
    // What failed may be the record itself; the seat then expires.
    await record(call, {
      httpStatus: left ? 499 : statusOf(thrown),
      error: left ? "client_disconnected" : messageOf(thrown),
    }).catch(() => undefined);
    throw thrown;
  }
}

/** An endpoint's error is the agent's to see, as it came. */
async function refused(call: ProxiedCall, status: number, body: Json): Promise<Response> {
  const error = isObject(body["error"]) && typeof body["error"]["message"] === "string" ? body["error"]["message"] : "";
  await record(
    call,
    { httpStatus: status, error: `the endpoint answered ${status}${error === "" ? "" : `: ${error.slice(0, 500)}`}` },
    { response: body as StoreJson },
  );
  return Response.json(body, { status });
}

/** A refusal that speaks of the policy's version as its tenant does. */
function inOwnNames({ model, endpoint }: Target, body: Json): Json {
  if (model === endpoint.model) return body;
  return parseObject(JSON.stringify(body).replaceAll(model, endpoint.model)) ?? {};
}

interface End {
  readonly httpStatus: number;
  readonly error: string | null;
}

/**
 * The call, its event where the endpoint answered, and that it is no longer under way: one unit.
 * @param kept absent where nothing was answered: such a call is recorded, but is no event of the rollout
 */
async function record(
  call: ProxiedCall,
  end: End,
  kept?: Pick<KeptOfCall, "response" | "routed_experts">,
): Promise<void> {
  const { c, path, capture, target, set } = call;
  const { parts, writer } = c.var;
  const { tenantId, id: callId } = capture.start;
  const now = parts.now();
  parts.counters.add("calls", 1);
  if (end.error !== null) parts.counters.add("call_errors", 1);
  const data: KeptOfCall = { server: target.endpoint, set: { ...set }, ...kept };
  const event: Statement[] =
    kept === undefined
      ? []
      : recordAglEvent(
          {
            id: newAglEventId(),
            tenantId,
            rolloutId: path.rolloutId,
            attemptId: path.attemptId,
            eventType: "model_request",
            data: { ...data },
            callId,
          },
          now,
        );
  const rewards = await toolRewards(call);
  await gatheringWriter(parts.shard, () => writer).append([
    [...recordCall(capture.record({ ...end, now })), ...recordRewards(rewards), ...event, leaveAgl(callId)],
  ]);
}

/** What the request tells of earlier tool calls, where the tenant has set up an agent of this name. */
async function toolRewards({ c, request, capture }: ProxiedCall): Promise<NewReward[]> {
  const { messages } = request;
  if (!Array.isArray(messages) || !messages.some((message) => isObject(message) && message["role"] === "tool"))
    return [];
  const { agents } = await tenantDirectory(c);
  const agent = Object.hasOwn(agents, AGL_AGENT) ? agents[AGL_AGENT] : undefined;
  if (agent === undefined) return [];
  const { tenantId, rolloutId, attempt, startedAt: now } = capture.start;
  return airRewards(messages, { tenantId, rolloutId, attempt, now, tools: agent.tools, success: agent.success });
}

// Where it goes -----------------------------------------------------------------------------------------------------

interface Target {
  readonly endpoint: Endpoint;
  /** The name that the endpoint knows the model by; of a policy, another one than its tenant does. */
  readonly model: string;
  /** The endpoint's address, which the edge may call. */
  readonly base: () => string;
  readonly failed?: ServersOfCall["failed"];
  readonly fetch: typeof fetch;
  /** Of a policy: the version that must answer. */
  readonly version: { readonly policy: string; readonly version: number } | undefined;
}

/**
 * The registered model of that name; else the policy of that name; else the model that was registered last, since a trainer
 * serves one and agents name what they like.
 */
async function targetOf(
  c: Context<EdgeHono>,
  models: readonly Endpoint[],
  { asked, rolloutId }: { readonly asked: string; readonly rolloutId: string },
): Promise<Target | undefined> {
  const { parts, principal, db } = c.var;
  const named = models.filter(({ model }) => model === asked);
  const version = named.length > 0 ? undefined : await versionOf(db(), principal.tenantId, asked);
  if (version !== undefined) {
    const { tenantId } = principal;
    const { config, now } = parts;
    const later = (work: Promise<unknown>): void => c.executionCtx.waitUntil(work);
    const servers = parts.servers.forCall(
      { tenantId, ...version },
      { rolloutId, reach: reachOf(c.env, config, { dbOf: requestDbs(config, c.env), now, later }) },
    );
    const base = (): string => `${servers.url()}/v1`;
    const model = versionName(version.policy, version.version);
    return {
      endpoint: { model, endpoint: base(), version: version.version },
      model: servedName(tenantId, version.policy, version.version),
      base,
      failed: servers.failed,
      fetch: inferenceFetch(c.env, config, now),
      version,
    };
  }
  const newest = models[0]?.model;
  const endpoint = await endpointOf(
    named.length > 0 ? named : models.filter(({ model }) => model === newest),
    rolloutId,
  );
  if (endpoint === undefined) return undefined;
  const base = allowedEndpoint(endpoint.endpoint, parts.config.outbound);
  const { model, endpoint: address, version: trained } = endpoint;
  return {
    endpoint: { model, endpoint: address, version: trained },
    model,
    base: () => base,
    fetch: (...sent) => fetch(...sent),
    version,
  };
}

async function versionOf(db: StoreDb, tenantId: string, name: string): Promise<Target["version"]> {
  if (name === "") return undefined;
  const exact = parseVersionName(name);
  if (exact !== undefined) {
    return (await readVersion(db, tenantId, exact.policy, exact.version)) === undefined ? undefined : exact;
  }
  const policy = await readPolicy(db, tenantId, name);
  return policy === undefined ? undefined : { policy: policy.name, version: policy.routeVersion };
}

/** @throws FulgurError ERR_UPSTREAM when another version answered than the one that was asked */
function checkVersion({ target: { version }, capture }: ProxiedCall): void {
  if (version === undefined) return;
  capture.target = version;
  if (!capture.answeredByAnother) return;
  throw new FulgurError(
    "ERR_UPSTREAM",
    `inference was asked for ${versionName(version.policy, version.version)} and answered as ${capture.answeredAs ?? "no model"}`,
  );
}

// What comes in -----------------------------------------------------------------------------------------------------

function modeOf(mode: string): ProxyMode {
  if (mode === "train" || mode === "val") return mode;
  throw new FulgurError("ERR_NOT_FOUND", `there is no mode ${mode}; it is train or val`);
}

function upstreamPathOf(path: string): UpstreamPath {
  if (Object.hasOwn(PATHS, path)) return path as UpstreamPath;
  throw new FulgurError("ERR_NOT_FOUND", `there is no path ${path} here; it is chat/completions or completions`);
}

function requestOf(text: string): Json {
  const request = text === "" ? {} : parseObject(text);
  if (request !== undefined && !isDeep(request)) return request;
  throw new FulgurError("ERR_INVALID_REQUEST", "the body must be a JSON object, not nested without end");
}

/** A key for agents or trainers, or the token of the rollout's own shadow. @throws FulgurError ERR_FORBIDDEN */
function requireCaller(principal: Principal, { id, shadowId }: AglRollout): void {
  requireKeyAgent(principal, AGL_AGENT);
  const { scopes, rollout } = principal;
  if (scopes.includes("agent") || scopes.includes("trainer") || scopes.includes("admin")) return;
  if (scopes.includes("call") && (rollout?.rolloutId === shadowId || rollout?.rolloutId === id)) return;
  throw new FulgurError(
    "ERR_FORBIDDEN",
    `calls of rollout ${id} need a key with scope agent, or the rollout's own token; this one has ${scopes.join(", ")}`,
  );
}

async function attemptOf(
  c: Context<EdgeHono>,
  { shadowId }: AglRollout,
  attempt: Parameters<typeof shadowOf>[0],
): Promise<number> {
  const { parts, writer } = c.var;
  const key = `${shadowId}/${attempt.attemptId}`;
  const known = opened.get(key, parts.now());
  if (known !== undefined) return known;
  const row = lastRow(await writer.transact([...openShadow(attempt, parts.now()), shadowOf(attempt)]));
  if (row === undefined) throw new FulgurError("ERR_NOT_FOUND", `there is no rollout ${attempt.id} any more`);
  const number = numberOf(row, "number");
  opened.set(key, number, parts.now());
  return number;
}

// What goes out -----------------------------------------------------------------------------------------------------

function readerOf({ request, capture }: ProxiedCall, includeUsage: boolean): ProviderReader {
  const { id, startedAt, dialect, requestText, modelAsked } = capture.start;
  const model = typeof request["model"] === "string" ? request["model"] : modelAsked;
  const options = { promptCharacters: requestText.length, includeUsage };
  return (dialect === "completions" ? completionsReader : chatReader)({ id, startedAt, model }, options);
}

/** The answer without ids and log-probabilities that the agent did not ask for. */
function withoutExtras(answer: Json, request: Json): Json {
  const wantsIds = request["return_token_ids"] === true;
  const wantsLogprobs =
    request["logprobs"] !== undefined && request["logprobs"] !== null && request["logprobs"] !== false;
  const { prompt_token_ids: promptIds, choices, ...rest } = answer;
  if ((wantsIds && wantsLogprobs) || !Array.isArray(choices)) return { ...answer };
  return {
    ...rest,
    ...(wantsIds && promptIds !== undefined ? { prompt_token_ids: promptIds } : {}),
    choices: (choices as readonly unknown[]).filter(isObject).map((choice) => {
      const { token_ids: ids, prompt_token_ids: ofPrompt, logprobs, ...said } = choice;
      return {
        ...said,
        logprobs: wantsLogprobs ? (logprobs ?? null) : null,
        ...(wantsIds && ids !== undefined ? { token_ids: ids } : {}),
        ...(wantsIds && ofPrompt !== undefined ? { prompt_token_ids: ofPrompt } : {}),
      };
    }),
  };
}

/** Which experts a mixture took is the trainer's to know, and large. */
function takeRoutedExperts(answer: Json): StoreJson | undefined {
  const choice = firstChoice(answer);
  const experts = choice?.["routed_experts"];
  if (choice === undefined || experts === undefined || experts === null) return undefined;
  delete choice["routed_experts"];
  return experts as StoreJson;
}

function assistantMessage({ gathered: { message } }: ProviderReader): Json {
  const { content, reasoning, toolCalls } = message;
  return {
    role: "assistant",
    content,
    ...(reasoning === null ? {} : { reasoning_content: reasoning }),
    ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
  };
}

/** Counted from the ids where the endpoint counted nothing. */
function usageOf(answer: Json): Json | null {
  const choice = firstChoice(answer);
  const prompt = readIds(answer["prompt_token_ids"]) ?? readIds(choice?.["prompt_token_ids"]);
  const completion = readIds(choice?.["token_ids"]);
  if (prompt === undefined || completion === undefined) return null;
  return {
    prompt_tokens: prompt.length,
    completion_tokens: completion.length,
    total_tokens: prompt.length + completion.length,
  };
}

/** Nothing serves yet, or any more: the trainer will say when. */
function unservedResponse(asked: string): Response {
  const detail = `no endpoint serves ${asked === "" ? "a model" : `model ${asked}`}; POST /api/models registers one`;
  return Response.json(
    { detail, error: { message: detail, type: "server_error", param: "model", code: "model_not_served" } },
    { status: 503, headers: { "retry-after": "1" } },
  );
}

function pausedResponse({ reason, retryAfterSeconds }: AglPauseState): Response {
  return Response.json(
    { error: "gateway paused", reason },
    { status: 503, headers: { "retry-after": String(Math.max(0, retryAfterSeconds)), "x-agl-paused": "true" } },
  );
}
