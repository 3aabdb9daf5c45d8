import { FulgurError } from "#shared/errors.ts";
import type { Json } from "#shared/tables.ts";
import { isObject } from "../../proxy/answer.ts";
import { MAX_DEPTH, type Attributes, type TelemetryEvent, type TelemetryLog, type TelemetrySpan } from "./telemetry.ts";

/** OTLP's JSON encoding: lowerCamelCase, ids in hex, 64-bit integers as text or number; unknown fields are ignored. */

/** `ExportTraceServiceRequest`. @throws FulgurError ERR_INVALID_REQUEST */
export function readTraces(text: string): TelemetrySpan[] {
  return list(parse(text), "resourceSpans").flatMap((group) => {
    const resource = attributesOf(objectAt(group, "resource"));
    return list(group, "scopeSpans").flatMap((scope) => list(scope, "spans").map((span) => readSpan(span, resource)));
  });
}

/** `ExportLogsServiceRequest`; log records without an event name are left out. @throws FulgurError ERR_INVALID_REQUEST */
export function readLogs(text: string): TelemetryLog[] {
  return list(parse(text), "resourceLogs").flatMap((group) => {
    const resource = attributesOf(objectAt(group, "resource"));
    return list(group, "scopeLogs").flatMap((scope) =>
      list(scope, "logRecords").flatMap((log) => readLog(log, resource) ?? []),
    );
  });
}

type Node = Readonly<Record<string, unknown>>;

function parse(text: string): Node {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch (cause) {
    throw new FulgurError("ERR_INVALID_REQUEST", "the body is not valid JSON; send an OTLP request", { cause });
  }
  if (isObject(body)) return body;
  throw new FulgurError("ERR_INVALID_REQUEST", "the body is not a JSON object; send an OTLP request");
}

function readSpan(span: Node, resource: Attributes): TelemetrySpan {
  const status = objectAt(span, "status");
  const parentId = hexAt(span, "parentSpanId");
  const finishedAt = timeAt(span, "endTimeUnixNano");
  return {
    traceId: hexAt(span, "traceId"),
    spanId: hexAt(span, "spanId"),
    parentId: parentId === "" ? null : parentId,
    name: textAt(span, "name"),
    startedAt: timeAt(span, "startTimeUnixNano"),
    finishedAt: finishedAt === 0 ? null : finishedAt,
    attributes: attributesOf(span),
    resource,
    events: list(span, "events").map(readEvent),
    failed: status["code"] === 2 || status["code"] === "STATUS_CODE_ERROR",
    statusMessage: textAt(status, "message"),
  };
}

function readEvent(event: Node): TelemetryEvent {
  return { name: textAt(event, "name"), at: timeAt(event, "timeUnixNano"), attributes: attributesOf(event) };
}

function readLog(log: Node, resource: Attributes): TelemetryLog | undefined {
  const attributes = attributesOf(log);
  const name = textAt(log, "eventName") || attributes["event.name"];
  if (typeof name !== "string" || name === "") return undefined;
  return {
    name,
    at: timeAt(log, "timeUnixNano") || timeAt(log, "observedTimeUnixNano"),
    attributes,
    resource,
    traceId: hexAt(log, "traceId") || null,
    spanId: hexAt(log, "spanId") || null,
  };
}

function attributesOf(node: Node): Attributes {
  return keyValues(list(node, "attributes"), 0);
}

function keyValues(entries: readonly Node[], depth: number): Record<string, Json> {
  const attributes: Record<string, Json> = Object.create(null);
  for (const entry of entries) attributes[textAt(entry, "key")] = valueOf(objectAt(entry, "value"), depth);
  return attributes;
}

function valueOf(value: Node, depth: number): Json {
  if (depth > MAX_DEPTH) return null;
  const [kind] = Object.keys(value);
  const given = kind === undefined ? undefined : value[kind];
  switch (kind) {
    case "stringValue":
    case "bytesValue":
      return typeof given === "string" ? given : null;
    case "boolValue":
      return given === true;
    case "intValue":
    case "doubleValue": {
      const number = typeof given === "number" || typeof given === "string" ? Number(given) : NaN;
      return Number.isFinite(number) ? number : null;
    }
    case "arrayValue":
      return list(isObject(given) ? given : {}, "values").map((item) => valueOf(item, depth + 1));
    case "kvlistValue":
      return keyValues(list(isObject(given) ? given : {}, "values"), depth + 1);
    default:
      return null;
  }
}

function list(node: Node, key: string): Node[] {
  const value = node[key];
  return Array.isArray(value) ? value.filter(isObject) : [];
}

function objectAt(node: Node, key: string): Node {
  const value = node[key];
  return isObject(value) ? value : {};
}

function textAt(node: Node, key: string): string {
  const value = node[key];
  return typeof value === "string" ? value : "";
}

function hexAt(node: Node, key: string): string {
  return textAt(node, key).toLowerCase();
}

/** Nanoseconds as text or number, in milliseconds; 0 where absent or odd. */
function timeAt(node: Node, key: string): number {
  const value = node[key];
  if (typeof value === "number") return Math.floor(value / 1e6);
  return typeof value === "string" && /^\d{1,20}$/.test(value) ? Number(BigInt(value) / 1_000_000n) : 0;
}
