import { z } from "zod";
import { messageOf } from "#shared/errors.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { moveExportCursor, readExportable, type ExportableCall } from "#shared/store/otlp-exports.ts";
import type { StoreWriter } from "#shared/store/statement.ts";
import { versionName } from "#shared/words.ts";

/**
 * Calls as OTLP spans, sent to the collector that a tenant names: what was asked of which model, how many tokens, how long;
 * never prompts or answers. At least once: the cursor moves after the collector took a page, and span ids are the calls'.
 */

export interface ExportDeps {
  readonly db: StoreDb;
  readonly writer: Pick<StoreWriter, "append">;
  readonly fetch: typeof fetch;
  readonly now: () => number;
  /** The value of a variable of the edge, for the collector's key. */
  readonly variable: (name: string) => string | undefined;
}

export interface Collector {
  readonly tenantId: string;
  /** Base URL; `/v1/traces` is appended unless it is there. */
  readonly url: string;
  readonly keyEnv: string | undefined;
}

const PAGE = 500;
const TIMEOUT_MS = 10_000;

/**
 * Exports what was recorded since the last time, page by page.
 * @returns how many calls the collector took; a failure is kept in the store's `otlp_exports` and tried again later
 */
export async function exportCalls(deps: ExportDeps, collector: Collector): Promise<number> {
  let exported = 0;
  for (;;) {
    const page = await readExportable(deps.db, collector.tenantId, PAGE);
    const last = page.at(-1);
    if (last === undefined) return exported;
    const failure = await post(deps, collector, page);
    await deps.writer.append([
      moveExportCursor({
        tenantId: collector.tenantId,
        cursor: failure === null ? last.row_id : undefined,
        error: failure,
        now: deps.now(),
      }),
    ]);
    if (failure !== null) return exported;
    exported += page.length;
    if (page.length < PAGE) return exported;
  }
}

const answerSchema = z.looseObject({ partialSuccess: z.looseObject({ rejectedSpans: z.coerce.number() }).nullish() });

/** Why the collector did not take the page; null where it did. Spans that it rejects it would reject again. */
async function post(
  deps: ExportDeps,
  { url, keyEnv }: Collector,
  page: readonly ExportableCall[],
): Promise<string | null> {
  const key = keyEnv === undefined ? undefined : deps.variable(keyEnv);
  if (keyEnv !== undefined && key === undefined) return `the edge has no variable ${keyEnv}`;
  try {
    const response = await deps.fetch(tracesUrl(url), {
      method: "POST",
      headers: { "content-type": "application/json", ...(key === undefined ? {} : { authorization: `Bearer ${key}` }) },
      body: JSON.stringify(await exportRequest(page)),
      redirect: "manual",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    const text = await response.text();
    if (!response.ok) return `the collector answered ${response.status}`;
    const answer = answerSchema.safeParse(text === "" ? {} : JSON.parse(text));
    const rejected = answer.data?.partialSuccess?.rejectedSpans ?? 0;
    // Taken, but the operator should know.
    return rejected > 0 && rejected >= page.length ? `the collector rejected all ${rejected} spans` : null;
  } catch (thrown) {
    return `the collector did not answer: ${messageOf(thrown)}`;
  }
}

function tracesUrl(url: string): string {
  const base = url.replace(/\/+$/, "");
  return base.endsWith("/v1/traces") ? base : `${base}/v1/traces`;
}

/** `ExportTraceServiceRequest` in OTLP's JSON encoding; a rollout's attempt is one trace. */
export async function exportRequest(calls: readonly ExportableCall[]): Promise<object> {
  return {
    resourceSpans: [
      {
        resource: { attributes: [attribute("service.name", "fulgur-edge")] },
        scopeSpans: [{ scope: { name: "fulgur" }, spans: await Promise.all(calls.map(spanOf)) }],
      },
    ],
  };
}

const OPERATIONS: Readonly<Record<string, string>> = { completions: "text_completion", embeddings: "embeddings" };

async function spanOf(call: ExportableCall): Promise<object> {
  const operation = OPERATIONS[call.dialect] ?? "chat";
  const attributes = {
    "gen_ai.operation.name": operation,
    "gen_ai.provider.name": call.provider ?? "fulgur",
    "gen_ai.request.model": call.model_asked,
    "gen_ai.request.temperature": call.temperature,
    "gen_ai.response.model": call.model_answered,
    "gen_ai.response.id": call.id,
    "gen_ai.response.finish_reasons": call.finish_reason === null ? null : [call.finish_reason],
    "gen_ai.usage.input_tokens": call.prompt_tokens,
    "gen_ai.usage.output_tokens": call.completion_tokens,
    "gen_ai.conversation.id": call.session_id,
    "gen_ai.agent.name": call.agent,
    "http.response.status_code": call.http_status,
    "error.type": call.http_status < 400 ? null : (call.error ?? String(call.http_status)),
    "fulgur.rollout_id": call.rollout_id,
    "fulgur.attempt": call.attempt,
    "fulgur.role": call.role,
    "fulgur.policy_version":
      call.policy === null || call.policy_version === null ? null : versionName(call.policy, call.policy_version),
  };
  return {
    traceId: await digest(`${call.rollout_id}:${call.attempt}`, 16),
    spanId: await digest(call.id, 8),
    name: `${operation} ${call.model_asked}`,
    kind: 3,
    startTimeUnixNano: nanoseconds(call.created_at),
    endTimeUnixNano: nanoseconds(call.created_at + call.latency_ms),
    attributes: Object.entries(attributes).flatMap(([key, value]) => (value === null ? [] : [attribute(key, value)])),
    status: call.http_status < 400 ? {} : { code: 2, message: call.error ?? "" },
  };
}

function attribute(key: string, value: string | number | readonly string[]): object {
  if (typeof value === "string") return { key, value: { stringValue: value } };
  if (typeof value !== "number")
    return { key, value: { arrayValue: { values: value.map((stringValue) => ({ stringValue })) } } };
  return { key, value: Number.isInteger(value) ? { intValue: String(value) } : { doubleValue: value } };
}

function nanoseconds(milliseconds: number): string {
  return String(BigInt(Math.round(milliseconds * 1000)) * 1000n);
}

/** Hex of the first bytes of a SHA-256: the same id gives the same span, however often it is sent. */
async function digest(text: string, bytes: number): Promise<string> {
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
  return [...hash.subarray(0, bytes)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
