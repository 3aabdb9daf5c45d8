import { Hono, type Context } from "hono";
import { FulgurError } from "#shared/errors.ts";
import { tenantDirectory, type EdgeHono } from "../context.ts";
import { airReward, judgeTool } from "../record/air.ts";
import { readOtlpBody } from "../record/otlp/body.ts";
import { ingestLogs, ingestSpans, type Ingested, type IngestOptions } from "../record/otlp/ingest.ts";
import * as json from "../record/otlp/json.ts";
import * as protobuf from "../record/otlp/protobuf.ts";

/**
 * OTLP/HTTP where exporters expect it (`OTEL_EXPORTER_OTLP_ENDPOINT=<edge>`): `/v1/traces`, and `/v1/logs` for evaluations.
 * JSON or protobuf, plain or gzip; answered in the encoding that it came in, with what was rejected and why.
 */
export const traceRoutes = new Hono<EdgeHono>().post("/", (c) =>
  take(c, "rejectedSpans", {
    json: async (text, options) => ingestSpans(json.readTraces(text), options),
    protobuf: async (bytes, options) => ingestSpans(protobuf.readTraces(bytes), options),
  }),
);

export const logRoutes = new Hono<EdgeHono>().post("/", (c) =>
  take(c, "rejectedLogRecords", {
    json: async (text, options) => ingestLogs(json.readLogs(text), options),
    protobuf: async (bytes, options) => ingestLogs(protobuf.readLogs(bytes), options),
  }),
);

interface Readers {
  readonly json: (text: string, options: IngestOptions) => Promise<Ingested>;
  readonly protobuf: (bytes: Uint8Array, options: IngestOptions) => Promise<Ingested>;
}

async function take(c: Context<EdgeHono>, rejectedField: string, readers: Readers): Promise<Response> {
  const { parts, principal, db, writer } = c.var;
  const own = principal.scopes.includes("call") ? principal.rollout : undefined;
  if (
    own === undefined &&
    !["agent", "trainer", "admin"].some((scope) => principal.scopes.some((held) => held === scope))
  ) {
    throw new FulgurError("ERR_FORBIDDEN", "telemetry needs a rollout's own token, or scope agent, trainer or admin");
  }
  const encoding = encodingOf(c.req.header("content-type"));
  const body = await readOtlpBody(c.req.raw);
  const { tenantId } = principal;
  const now = parts.now();
  const { agents } = await tenantDirectory(c);
  const options: IngestOptions = {
    db: db(),
    tenantId,
    own,
    onlyAgent: principal.keyAgent,
    now,
    toolReward({ toolCallId, tool, result, failed }, { rolloutId, attempt, agent }) {
      const settings = Object.hasOwn(agents, agent) ? agents[agent] : undefined;
      if (settings === undefined) return undefined;
      const succeeded = failed ? false : judgeTool(settings, tool, result ?? "");
      const { tools, success } = settings;
      return succeeded === undefined
        ? undefined
        : airReward({ toolCallId, tool, succeeded }, { tools, success, tenantId, rolloutId, attempt, now }, "span");
    },
  };
  const ingested =
    encoding === "json"
      ? await readers.json(new TextDecoder().decode(body), options)
      : await readers.protobuf(body, options);
  if (ingested.statements.length > 0) await writer.append([ingested.statements]);
  const { rejected, reason } = ingested;
  if (encoding === "protobuf") {
    return c.body(protobuf.writePartialSuccess(rejected, reason), 200, { "content-type": "application/x-protobuf" });
  }
  return c.json(rejected === 0 ? {} : { partialSuccess: { [rejectedField]: String(rejected), errorMessage: reason } });
}

function encodingOf(contentType: string | undefined): "json" | "protobuf" {
  const type = contentType?.split(";")[0]?.trim().toLowerCase();
  if (type === "application/json") return "json";
  if (type === "application/x-protobuf" || type === "application/protobuf") return "protobuf";
  throw new FulgurError(
    "ERR_INVALID_REQUEST",
    `OTLP comes as application/json or application/x-protobuf, not ${type?.slice(0, 60) ?? "without a content type"}`,
  );
}
