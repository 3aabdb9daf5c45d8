import type { ModelTarget } from "#shared/agent-settings.ts";
import { FulgurError } from "#shared/errors.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { readRollout } from "#shared/store/rollouts.ts";
import { readTenantSettings } from "#shared/store/tenants.ts";
import { JUDGE_ROLE } from "#shared/words.ts";
import { writerOf, type Env } from "../../config.ts";
import { shardDb, type EdgeParts } from "../../context.ts";
import type { RoutedModel, TenantDirectory } from "../../directory.ts";
import { openKey } from "../../provider-key.ts";
import type { Admission } from "../../proxy/admission.ts";
import { firstChoice, isObject, parseObject, type Json } from "../../proxy/answer.ts";
import { ask, record, type Call, type Caller, type ProxyDeps } from "../../proxy/call.ts";
import { readChatRequest } from "../../proxy/chat/request.ts";
import { handle, type Answered } from "../../proxy/handle.ts";
import { limits as limitsOf } from "../../proxy/limits.ts";
import { inferenceFetch } from "../../proxy/inference-fetch.ts";
import { providerCall } from "../../proxy/provider/provider.ts";
import { reachOf } from "../../proxy/reach.ts";
import { readAnswer, takeWhole } from "../../proxy/whole-answer.ts";
import { gatheringWriter } from "../gather.ts";
import { cannotJudge, type EvaluatorDeps } from "./contract.ts";

/** What asking a model takes of an edge. */
export interface AskParts extends Pick<
  EdgeParts,
  | "config"
  | "shard"
  | "directory"
  | "admission"
  | "resolver"
  | "prompts"
  | "counters"
  | "servers"
  | "providerMemory"
  | "now"
> {
  /** Keeps work alive beside what asks. */
  readonly later: (work: Promise<unknown>) => void;
}

/**
 * A way to ask models through the edge's own proxy: each question is a call of the rollout with role `judge`, recorded and
 * metered before its answer counts, and never trained on.
 */
export function modelAsker(env: Env, parts: AskParts): NonNullable<EvaluatorDeps["askModel"]> {
  const { config, shard, directory, now, later } = parts;
  return async (target, messages, { ref, signal }) => {
    const { tenantId, rolloutId, attempt } = ref;
    let made: StoreDb | undefined;
    const db = (): StoreDb => (made ??= shardDb(config, env, shard.index));
    const [tenant, rollout] = await Promise.all([
      directory.of({ tenantId, db, now: now(), later }),
      readRollout(db(), tenantId, rolloutId),
    ]);
    if (rollout === undefined) throw cannotJudge(`rollout ${rolloutId} is gone`);
    const route = await judgeRoute(parts, tenant, target);
    const { agent, mode } = rollout;
    const caller: Caller = {
      principal: { tenantId, scopes: ["call"], jti: `judge:${rolloutId}`, expiresAtSeconds: Infinity },
      rollout: { rolloutId, attempt, agent, mode, pin: null, caps: NO_CAPS },
      recording: "full",
    };
    const model = route.kind === "policy" ? route.policy : route.model;
    const requestText = JSON.stringify({ model, messages });
    const request = new Request("https://edge.internal/v1/chat/completions", { method: "POST", signal });
    const asked = { request, requestText, dialect: "chat", startedAt: now() } as const;
    const deps = proxyDeps(env, parts, { db, tenant, caller, route });
    const chat = readChatRequest(requestText);
    const response =
      route.kind === "provider"
        ? await providerCall(deps, caller, { ...asked, body: chat, route })
        : await handle(deps, caller, { ...asked, chat, route }, policyAnswer);
    const text = textOf(parseObject(await response.text()) ?? {});
    if (text === undefined) throw cannotJudge(`${model} answered without a text`);
    return text;
  };
}

/** The judge is the tenant's, not the agent's: it spends nothing of the attempt's caps. */
const NO_CAPS = { maxCalls: Number.MAX_SAFE_INTEGER, maxTokens: Number.MAX_SAFE_INTEGER };

/** Asks for the tenant's money alone: a rollout that has ended is judged too, when its rewards are computed anew. */
function ifAffordable({ budget }: Pick<Admission, "budget">): ProxyDeps["admission"] {
  return {
    async admit({ principal: { tenantId }, most, db, now, later }) {
      const settings = await readTenantSettings(db(), tenantId);
      const request = { ...most(), tenantId, monthly: settings?.monthly_budget, db, now, later };
      const reservation = await budget.reserve(request);
      return { failOpen: false, leave: ({ prompt, completion }) => reservation?.settle(prompt, completion) };
    },
  };
}

/** @throws FulgurError ERR_UNKNOWN_POLICY where the provider does not exist, ERR_CONFIG where its key is not to be had */
async function judgeRoute(
  { config }: Pick<AskParts, "config">,
  { providers }: TenantDirectory,
  target: ModelTarget,
): Promise<RoutedModel> {
  if (target.kind === "policy") return { ...target, role: JUDGE_ROLE };
  const provider = providers.get(target.provider);
  if (provider === undefined) {
    throw new FulgurError(
      "ERR_UNKNOWN_POLICY",
      `there is no provider ${target.provider} to judge; npx fulgur providers add ${target.provider} makes it`,
    );
  }
  const { name, baseUrl } = provider;
  const apiKey = await openKey(config, provider);
  return { kind: "provider", provider: { name, baseUrl, apiKey }, model: target.model, role: JUDGE_ROLE };
}

interface Place {
  readonly db: ProxyDeps["db"];
  readonly tenant: TenantDirectory;
  readonly caller: Caller;
  readonly route: RoutedModel;
}

function proxyDeps(env: Env, parts: AskParts, { db, tenant, caller, route }: Place): ProxyDeps {
  const { config, shard, admission, resolver, prompts, counters, servers, providerMemory, now, later } = parts;
  const limits = limitsOf();
  return {
    servers,
    reach: reachOf(env, config, { dbOf: (shard) => shardDb(config, env, shard), now, later }),
    callerOf: () => Promise.resolve(caller),
    issued: () => undefined,
    agents: tenant.agents,
    route: () => Promise.resolve(route),
    db,
    writer: gatheringWriter(shard, () => writerOf(env, shard.index), limits),
    admission: ifAffordable(admission),
    resolver,
    prompts,
    counters,
    fetch: inferenceFetch(env, config, now),
    fetchProvider: (input, init) => fetch(input, init),
    providerMemory,
    now,
    limits,
    waitUntil: later,
  };
}

async function policyAnswer(call: Call): Promise<Answered> {
  // Without token ids and logprobs a call cannot be trained on, whoever reads it.
  const { prompt_token_ids: _prompt, ...answer } = await ask(call, readAnswer);
  const { token_ids: _response, prompt_token_ids: _within, logprobs: _logprobs, ...choice } = firstChoice(answer) ?? {};
  const untrained = { ...answer, choices: [choice] };
  takeWhole(call.capture, untrained);
  await record(call, { httpStatus: 200, error: null });
  return { response: Response.json(untrained) };
}

function textOf(answer: Json): string | undefined {
  const message = firstChoice(answer)?.["message"];
  const content = isObject(message) ? message["content"] : undefined;
  return typeof content === "string" ? content : undefined;
}
