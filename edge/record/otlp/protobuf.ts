import { BinaryReader, BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { FulgurError } from "#shared/errors.ts";
import { toBase64 } from "#shared/store/base64.ts";
import type { Json } from "#shared/tables.ts";
import { MAX_DEPTH, type Attributes, type TelemetryEvent, type TelemetryLog, type TelemetrySpan } from "./telemetry.ts";

/**
 * OTLP's protobuf encoding, read field by field: a few messages only, and workerd forbids the code generation that
 * reflective readers need. Field numbers are those of opentelemetry-proto 1.x (trace, logs, common, resource).
 */

/** `ExportTraceServiceRequest`. @throws FulgurError ERR_INVALID_REQUEST */
export function readTraces(bytes: Uint8Array): TelemetrySpan[] {
  return readScopes(bytes, readSpan);
}

/** `ExportLogsServiceRequest`; log records without an event name are left out. @throws FulgurError ERR_INVALID_REQUEST */
export function readLogs(bytes: Uint8Array): TelemetryLog[] {
  return readScopes(bytes, readLog).filter((log) => log !== undefined);
}

/** What both requests are: resources (1), each with its attributes (1) and its scopes (2), which hold the items (2). */
function readScopes<T>(bytes: Uint8Array, readItem: (reader: BinaryReader, resource: Attributes) => T): T[] {
  return parse(bytes, (reader) => {
    const items: T[] = [];
    fields(reader, {
      1: () => {
        let resource: Attributes = {};
        // The resource may come after what it belongs to.
        const scopes: Uint8Array[] = [];
        message(reader, {
          1: () => (resource = readResource(reader)),
          2: () => scopes.push(reader.bytes()),
        });
        for (const scope of scopes) {
          const inner = new BinaryReader(scope);
          fields(inner, { 2: () => items.push(readItem(inner, resource)) });
        }
      },
    });
    return items;
  });
}

/** `ExportTraceServiceResponse` or its logs twin: empty where everything was taken. */
export function writePartialSuccess(rejected: number, message: string): Uint8Array<ArrayBuffer> {
  const writer = new BinaryWriter();
  if (rejected > 0) {
    writer
      .tag(1, WireType.LengthDelimited)
      .fork()
      .tag(1, WireType.Varint)
      .int64(rejected)
      .tag(2, WireType.LengthDelimited)
      .string(message)
      .join();
  }
  return writer.finish();
}

function parse<T>(bytes: Uint8Array, read: (reader: BinaryReader) => T): T {
  try {
    return read(new BinaryReader(bytes));
  } catch (cause) {
    throw new FulgurError("ERR_INVALID_REQUEST", "the body is not an OTLP request in protobuf", { cause });
  }
}

type Fields = Readonly<Record<number, () => unknown>>;

/** Reads one message up to `end`; fields without a reader are skipped. */
function fields(reader: BinaryReader, known: Fields, end = reader.len): void {
  while (reader.pos < end) {
    const [field, type] = reader.tag();
    const read = known[field];
    if (read === undefined) reader.skip(type, field);
    else read();
  }
  if (reader.pos !== end) throw new RangeError("a field goes beyond its message");
}

/** As {@link fields}, for a message inside another. */
function message(reader: BinaryReader, known: Fields): void {
  const length = reader.uint32();
  const end = reader.pos + length;
  if (end > reader.len) throw new RangeError("a message goes beyond the body");
  fields(reader, known, end);
}

function readResource(reader: BinaryReader): Attributes {
  const attributes: Record<string, Json> = Object.create(null);
  message(reader, { 1: () => readKeyValue(reader, attributes, 0) });
  return attributes;
}

function readKeyValue(reader: BinaryReader, into: Record<string, Json>, depth: number): void {
  let key = "";
  let value: Json = null;
  message(reader, { 1: () => (key = reader.string()), 2: () => (value = readValue(reader, depth)) });
  into[key] = value;
}

function readValue(reader: BinaryReader, depth: number): Json {
  let value: Json = null;
  if (depth > MAX_DEPTH) {
    reader.skip(WireType.LengthDelimited);
    return null;
  }
  message(reader, {
    1: () => (value = reader.string()),
    2: () => (value = reader.bool()),
    3: () => (value = Number(reader.int64())),
    4: () => (value = finite(reader.double())),
    5: () => {
      const list: Json[] = [];
      message(reader, { 1: () => list.push(readValue(reader, depth + 1)) });
      value = list;
    },
    6: () => {
      const map: Record<string, Json> = Object.create(null);
      message(reader, { 1: () => readKeyValue(reader, map, depth + 1) });
      value = map;
    },
    7: () => (value = toBase64(reader.bytes())),
  });
  return value;
}

function readSpan(reader: BinaryReader, resource: Attributes): TelemetrySpan {
  let traceId = "";
  let spanId = "";
  let parentId = "";
  let name = "";
  let startedAt = 0;
  let finishedAt = 0;
  let failed = false;
  let statusMessage = "";
  const attributes: Record<string, Json> = Object.create(null);
  const events: TelemetryEvent[] = [];
  message(reader, {
    1: () => (traceId = hex(reader.bytes())),
    2: () => (spanId = hex(reader.bytes())),
    4: () => (parentId = hex(reader.bytes())),
    5: () => (name = reader.string()),
    7: () => (startedAt = milliseconds(reader.fixed64())),
    8: () => (finishedAt = milliseconds(reader.fixed64())),
    9: () => readKeyValue(reader, attributes, 0),
    11: () => events.push(readEvent(reader)),
    15: () => message(reader, { 2: () => (statusMessage = reader.string()), 3: () => (failed = reader.int32() === 2) }),
  });
  return {
    traceId,
    spanId,
    parentId: parentId === "" ? null : parentId,
    name,
    startedAt,
    finishedAt: finishedAt === 0 ? null : finishedAt,
    attributes,
    resource,
    events,
    failed,
    statusMessage,
  };
}

function readEvent(reader: BinaryReader): TelemetryEvent {
  let at = 0;
  let name = "";
  const attributes: Record<string, Json> = Object.create(null);
  message(reader, {
    1: () => (at = milliseconds(reader.fixed64())),
    2: () => (name = reader.string()),
    3: () => readKeyValue(reader, attributes, 0),
  });
  return { at, name, attributes };
}

function readLog(reader: BinaryReader, resource: Attributes): TelemetryLog | undefined {
  let at = 0;
  let observedAt = 0;
  let name = "";
  let traceId = "";
  let spanId = "";
  const attributes: Record<string, Json> = Object.create(null);
  message(reader, {
    1: () => (at = milliseconds(reader.fixed64())),
    6: () => readKeyValue(reader, attributes, 0),
    9: () => (traceId = hex(reader.bytes())),
    10: () => (spanId = hex(reader.bytes())),
    11: () => (observedAt = milliseconds(reader.fixed64())),
    12: () => (name = reader.string()),
  });
  // Before `event_name` had a field of its own, SDKs put it among the attributes.
  const eventName = name === "" ? attributes["event.name"] : name;
  if (typeof eventName !== "string") return undefined;
  return {
    name: eventName,
    at: at === 0 ? observedAt : at,
    attributes,
    resource,
    traceId: traceId === "" ? null : traceId,
    spanId: spanId === "" ? null : spanId,
  };
}

function milliseconds(nanoseconds: bigint | string): number {
  return Number(BigInt(nanoseconds) / 1_000_000n);
}

function finite(value: number): number | null {
  return Number.isFinite(value) ? value : null;
}

function hex(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += byte.toString(16).padStart(2, "0");
  return text;
}
