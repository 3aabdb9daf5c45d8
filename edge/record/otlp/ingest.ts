import { newId } from "#shared/ids.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { recordRewards, type NewReward } from "#shared/store/rewards.ts";
import { readPlaces, recordSpans, type NewSpan, type Place, type Places } from "#shared/store/spans.ts";
import type { Statement } from "#shared/store/statement.ts";
import type { Json } from "#shared/tables.ts";
import type { RolloutClaims } from "#shared/tokens.ts";
import {
  conversationIdOf,
  evaluationOf,
  kindOf,
  responseIdOf,
  ROLLOUT_ATTRIBUTE,
  toolOf,
  type Evaluation,
} from "./conventions.ts";
import type { TelemetryEvent, TelemetryLog, TelemetrySpan } from "./telemetry.ts";

/** What a tool span tells, made a reward by the same rules as a tool message on the wire; undefined where it earns nothing. */
export type ToolReward = (
  seen: {
    readonly toolCallId: string;
    readonly tool: string;
    readonly result: string | null;
    readonly failed: boolean;
  },
  place: Place,
) => NewReward | undefined;

export interface IngestOptions {
  readonly db: StoreDb;
  readonly tenantId: string;
  /** Where everything belongs that a rollout's own token sends, whatever its attributes say. */
  readonly own: RolloutClaims | undefined;
  /** The one agent of whose rollouts the sender may speak; of any where undefined. */
  readonly onlyAgent?: string | undefined;
  readonly toolReward: ToolReward;
  readonly now: number;
}

export interface Ingested {
  /** One unit for the writer. */
  readonly statements: Statement[];
  readonly rejected: number;
  /** Why some were rejected; empty where none was. */
  readonly reason: string;
}

const MAX_SPANS = 4096;
/** A span's attributes as JSON; longer texts in them are cut first. */
const MAX_ATTRIBUTES_CHARACTERS = 200_000;
const MAX_TEXT_CHARACTERS = 20_000;

const NO_PLACE = `no rollout of yours: send a rollout's own token, or set ${ROLLOUT_ATTRIBUTE}, gen_ai.response.id (our answer's id) or gen_ai.conversation.id (the session)`;

/** Spans into their rollouts; tool spans and evaluations become rewards. */
export async function ingestSpans(spans: readonly TelemetrySpan[], options: IngestOptions): Promise<Ingested> {
  const taken = spans.slice(0, MAX_SPANS);
  const places = await placesOf(taken, options);
  const rows: NewSpan[] = [];
  const rewards: NewReward[] = [];
  const reasons = new Map<string, number>();
  if (spans.length > taken.length) reasons.set(`a request may have ${MAX_SPANS} spans`, spans.length - taken.length);
  for (const span of taken) {
    const place = places.get(span);
    const wrong = place === undefined ? NO_PLACE : faultOf(span);
    if (place === undefined || wrong !== undefined) {
      count(reasons, wrong ?? NO_PLACE);
      continue;
    }
    rows.push(spanRow(span, place, options));
    rewards.push(...rewardsOf(span, place, options));
  }
  return { statements: [...recordSpans(rows), ...recordRewards(rewards)], ...rejection(reasons) };
}

/** Events that came as log records: evaluations become rewards, the rest is refused (logs are not kept). */
export async function ingestLogs(logs: readonly TelemetryLog[], options: IngestOptions): Promise<Ingested> {
  const taken = logs.slice(0, MAX_SPANS);
  const places = await placesOf(taken, options);
  const rewards: NewReward[] = [];
  const reasons = new Map<string, number>();
  if (logs.length > taken.length)
    reasons.set(`a request may have ${MAX_SPANS} log records`, logs.length - taken.length);
  for (const log of taken) {
    const evaluation = evaluationOf(log);
    const place = places.get(log);
    if (evaluation === undefined)
      count(reasons, `only gen_ai.evaluation.result is taken, not ${log.name.slice(0, 60)}`);
    else if (evaluation === "unreadable") count(reasons, NO_SCORE);
    else if (place === undefined) count(reasons, NO_PLACE);
    else rewards.push(evaluationReward(evaluation, log, { place, options }));
  }
  return { statements: recordRewards(rewards), ...rejection(reasons) };
}

const NO_SCORE = "gen_ai.evaluation.result needs gen_ai.evaluation.score.value, or a label such as pass or fail";

type Placed = TelemetrySpan | TelemetryLog;

/** Where each belongs: its own hints first, then those of the rest of its trace in the same request. */
async function placesOf(
  items: readonly Placed[],
  { own, onlyAgent, db, tenantId }: IngestOptions,
): Promise<Map<Placed, Place>> {
  if (own !== undefined) {
    const { rolloutId, attempt, agent } = own;
    return new Map(items.map((item) => [item, { rolloutId, attempt, agent }]));
  }
  const hints = items.map(hintsOf);
  const wanted = (pick: (hint: Hints) => string | null): string[] => [
    ...new Set(hints.map(pick).filter((value) => value !== null)),
  ];
  const found = await readPlaces(db, tenantId, {
    rolloutIds: wanted((hint) => hint.rolloutId),
    callIds: wanted((hint) => hint.callId),
    sessionIds: wanted((hint) => hint.sessionId),
  });
  const placed = new Map<Placed, Place>();
  const byTrace = new Map<string, Place>();
  for (const [index, item] of items.entries()) {
    const place = placeOf(hints[index], found);
    if (place === undefined || (onlyAgent !== undefined && place.agent !== onlyAgent)) continue;
    placed.set(item, place);
    if (item.traceId !== null) byTrace.set(item.traceId, place);
  }
  for (const item of items) {
    const place = item.traceId === null ? undefined : byTrace.get(item.traceId);
    // A span that names a rollout which is not there is not somebody else's.
    if (place !== undefined && !placed.has(item) && rolloutAttribute(item) === null) placed.set(item, place);
  }
  return placed;
}

interface Hints {
  readonly rolloutId: string | null;
  readonly callId: string | null;
  readonly sessionId: string | null;
}

function hintsOf(item: Placed): Hints {
  const responseId = responseIdOf(item.attributes);
  return {
    rolloutId: rolloutAttribute(item),
    callId: responseId === null ? null : callIdOf(responseId),
    sessionId: conversationIdOf(item.attributes) ?? conversationIdOf(item.resource),
  };
}

function rolloutAttribute({ attributes, resource }: Placed): string | null {
  const value = attributes[ROLLOUT_ATTRIBUTE] ?? resource[ROLLOUT_ATTRIBUTE];
  return typeof value === "string" ? value : null;
}

/** Each dialect's answer ids are the call's id under a prefix of its own. */
function callIdOf(responseId: string): string {
  return `ca_${responseId.slice(responseId.indexOf("_") + 1)}`;
}

function placeOf(hint: Hints | undefined, found: Places): Place | undefined {
  if (hint === undefined) return undefined;
  if (hint.rolloutId !== null) return found.byRollout.get(hint.rolloutId);
  return (
    (hint.callId === null ? undefined : found.byCall.get(hint.callId)) ??
    (hint.sessionId === null ? undefined : found.bySession.get(hint.sessionId))
  );
}

function faultOf({ traceId, spanId, startedAt, finishedAt }: TelemetrySpan): string | undefined {
  if (!/^[0-9a-f]{32}$/.test(traceId) || !/^[0-9a-f]{16}$/.test(spanId))
    return "a span needs a trace id of 16 and a span id of 8 bytes";
  return startedAt === 0 || (finishedAt !== null && finishedAt < startedAt)
    ? "a span needs a start before its end"
    : undefined;
}

function spanRow(span: TelemetrySpan, place: Place, { tenantId }: IngestOptions): NewSpan {
  return {
    id: `${tenantId}:${span.traceId}:${span.spanId}`,
    tenantId,
    rolloutId: place.rolloutId,
    attempt: place.attempt,
    traceId: span.traceId,
    parentId: span.parentId,
    name: span.name.slice(0, 256),
    attributes: fitting({
      ...span.attributes,
      "fulgur.kind": kindOf(span),
      ...(span.failed ? { "otel.status_code": "ERROR", "otel.status_description": span.statusMessage } : {}),
      ...(span.events.length === 0
        ? {}
        : {
            "otel.events": span.events.map(({ name, at, attributes }) => ({ name, at, attributes: { ...attributes } })),
          }),
    }),
    startedAt: span.startedAt,
    finishedAt: span.finishedAt,
  };
}

/** The attributes, long texts cut, or only their names where even that is too much for a row. */
function fitting(attributes: Record<string, Json>): Json {
  const cut = cutTexts(attributes);
  return JSON.stringify(cut).length <= MAX_ATTRIBUTES_CHARACTERS
    ? cut
    : { "fulgur.attributes_dropped": Object.keys(attributes).slice(0, 200) };
}

function cutTexts(value: Json): Json {
  if (typeof value === "string")
    return value.length <= MAX_TEXT_CHARACTERS ? value : `${value.slice(0, MAX_TEXT_CHARACTERS)}…`;
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map(cutTexts);
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, cutTexts(inner)]));
}

function rewardsOf(span: TelemetrySpan, place: Place, options: IngestOptions): NewReward[] {
  const tool = toolOf(span);
  const earned =
    tool === undefined || tool.toolCallId === null || tool.toolCallId.length > 256
      ? undefined
      : options.toolReward({ ...tool, toolCallId: tool.toolCallId }, place);
  const evaluations = span.events.flatMap((event) => {
    const evaluation = evaluationOf(event);
    if (evaluation === undefined || evaluation === "unreadable") return [];
    const about = { ...evaluation, responseId: evaluation.responseId ?? responseIdOf(span.attributes) };
    return [evaluationReward(about, { ...event, spanId: span.spanId }, { place, options })];
  });
  return earned === undefined ? evaluations : [earned, ...evaluations];
}

function evaluationReward(
  evaluation: Evaluation,
  event: TelemetryEvent & { readonly spanId: string | null },
  { place, options }: { readonly place: Place; readonly options: IngestOptions },
): NewReward {
  const callId = evaluation.responseId === null ? null : callIdOf(evaluation.responseId);
  // What an agent says of itself is no judge's word.
  const source = options.own === undefined ? "judge" : "explicit";
  return {
    id: newId("reward"),
    tenantId: options.tenantId,
    key: [source, place.rolloutId, place.attempt, evaluation.name, callId ?? event.spanId ?? event.at].join(":"),
    rolloutId: place.rolloutId,
    attempt: place.attempt,
    callId,
    source,
    name: evaluation.name,
    value: evaluation.value,
    detail: evaluation.explanation === null ? null : { explanation: evaluation.explanation },
    createdAt: options.now,
  };
}

function count(reasons: Map<string, number>, reason: string): void {
  reasons.set(reason, (reasons.get(reason) ?? 0) + 1);
}

function rejection(reasons: ReadonlyMap<string, number>): { rejected: number; reason: string } {
  let rejected = 0;
  for (const number of reasons.values()) rejected += number;
  return { rejected, reason: [...reasons].map(([reason, number]) => `${number}: ${reason}`).join("; ") };
}
