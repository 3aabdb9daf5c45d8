import { z } from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { fromBase64 } from "./base64.ts";
import type { StoreOptions } from "./connect.ts";
import { gathered } from "./encoded.ts";
import type { EncodedStatement, Row, Value, Writable } from "./statement.ts";

/**
 * libSQL's HTTP interface (hrana 3, JSON) reduced to what a writer needs: one request is one transaction. Reads go
 * through connect.ts. The general client spends several times longer on a commit of many small statements, and does not
 * tell a refused statement from an absent server.
 * @see https://github.com/tursodatabase/libsql/blob/main/docs/HRANA_3_SPEC.md
 */
export interface Pipeline {
  /**
   * Runs the statements as one transaction, in one request.
   * @throws FulgurError ERR_STORE when libSQL did not answer: whether it committed is then unknown, so statements must
   * be repeatable. Code ERR_CONFLICT when it refused a statement, ERR_DISK when its disk is full or failing: nothing was
   * changed then.
   */
  run(statements: readonly Writable[], options?: RunOptions): Promise<Row[][]>;
}

export interface RunOptions {
  /** `none` saves the answer's rows where nobody reads them. */
  readonly rows?: "all" | "none";
  readonly timeoutMs?: number;
}

export interface PipelineOptions extends StoreOptions {
  /**
   * Goes on with one stream (a connection inside the server) from run to run, which saves half of a small commit's time.
   * For a writer, which runs one transaction at a time.
   */
  readonly keepStream?: boolean;
}

interface Stream {
  readonly baton: string;
  /** SQL texts that the server has from this stream's earlier runs, by their number. */
  readonly sqlIds: Map<string, number>;
  readonly usedAt: number;
}

/** The server ends a stream that was idle for 10 s. */
const STREAM_IDLE_MS = 5000;
/** It keeps 50 texts for a stream, none of 5,000 bytes or more. */
const STREAM_MAX_SQL = 48;
const STREAM_MAX_SQL_CHARS = 1500;

export function openPipeline(options: PipelineOptions): Pipeline {
  const { url, token, timeoutMs = 10_000, fetch: send = fetch, keepStream = false } = options;
  const endpoint = `${url.replace(/^libsql:/, "https:").replace(/\/+$/, "")}/v3/pipeline`;
  let kept: Stream | undefined;

  async function post(body: string, limitMs: number): Promise<{ status: number; text: string }> {
    try {
      const response = await send(endpoint, {
        method: "POST",
        headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
        body,
        signal: AbortSignal.timeout(limitMs),
      });
      return { status: response.status, text: await response.text() };
    } catch (cause) {
      throw new FulgurError("ERR_STORE", `libSQL did not answer within ${limitMs} ms: ${messageOf(cause)}`, { cause });
    }
  }

  return {
    async run(given, { rows = "all", timeoutMs: limitMs = timeoutMs } = {}) {
      const { statements, places } = gathered(given);
      // Taken, so that a second run at the same time opens its own, and a failed one is never gone on with.
      const stream = kept !== undefined && Date.now() - kept.usedAt < STREAM_IDLE_MS ? kept : undefined;
      kept = undefined;
      const attempt = async (baton: string | null, known: ReadonlyMap<string, number>): Promise<Row[][]> => {
        const sqlIds = new Map(known);
        const body = transactionBody(statements, {
          baton,
          sqlIds,
          wantRows: rows === "all",
          close: !keepStream,
        });
        const { status, text } = await post(body, limitMs);
        // The server restarted or ended the stream: it has run nothing.
        if (status === 400 && baton !== null && /baton|stream/i.test(text)) return attempt(null, new Map());
        if (status !== 200) {
          // 400 and 413 are about this request; anything else (401, 429, 5xx) may pass.
          throw new FulgurError(
            status === 400 || status === 413 ? "ERR_CONFLICT" : "ERR_STORE",
            `libSQL answered ${status} to a write: ${text.slice(0, 200)}`,
          );
        }
        const answer = parseAnswer(text);
        const results = resultsOf(answer, statements.length);
        const found = rows === "all" ? rowsOf(results) : [];
        const result = places.map((place) => found[place] ?? []);
        if (keepStream && typeof answer.baton === "string") {
          kept = { baton: answer.baton, sqlIds, usedAt: Date.now() };
        }
        return result;
      };
      return attempt(stream?.baton ?? null, stream?.sqlIds ?? new Map());
    },
  };
}

interface BodyOptions {
  readonly baton: string | null;
  /** SQL texts that the stream knows; those that it does not know yet are added. */
  readonly sqlIds: Map<string, number>;
  readonly wantRows: boolean;
  readonly close: boolean;
}

/** begin, the statements (each only after the one before succeeded), commit, and rollback unless that committed. */
function transactionBody(statements: readonly EncodedStatement[], options: BodyOptions): string {
  const { baton, sqlIds, wantRows, close } = options;
  // A SQL text goes over once, however many rows it inserts; the few that the server cannot keep go with each use.
  let stored = "";
  // Joined by hand: the arguments are JSON already.
  let steps = `{"stmt":{"sql":"begin immediate","want_rows":false}}`;
  let last = 0;
  for (const { sql, argsJson } of statements) {
    let sqlId = sqlIds.get(sql);
    if (sqlId === undefined && sqlIds.size < STREAM_MAX_SQL && sql.length <= STREAM_MAX_SQL_CHARS) {
      sqlIds.set(sql, (sqlId = sqlIds.size));
      stored += `{"type":"store_sql","sql_id":${sqlId},"sql":${JSON.stringify(sql)}},`;
    }
    const text = sqlId === undefined ? `"sql":${JSON.stringify(sql)}` : `"sql_id":${sqlId}`;
    steps += `,{"condition":{"type":"ok","step":${last}},"stmt":{${text},"args":${argsJson},"want_rows":${wantRows}}}`;
    last += 1;
  }
  steps += `,{"condition":{"type":"ok","step":${last}},"stmt":{"sql":"commit","want_rows":false}}`;
  steps += `,{"condition":{"type":"not","cond":{"type":"ok","step":${last + 1}}},"stmt":{"sql":"rollback","want_rows":false}}`;
  const end = close ? `,{"type":"close"}` : "";
  return `{"baton":${JSON.stringify(baton)},"requests":[${stored}{"type":"batch","batch":{"steps":[${steps}]}}${end}]}`;
}

const wireValue = z.object({
  type: z.enum(["null", "integer", "float", "text", "blob"]),
  value: z.union([z.string(), z.number()]).optional(),
  base64: z.string().optional(),
});
const wireError = z.object({ message: z.string(), code: z.string().nullish() });
const stepResults = z.array(
  z.object({
    cols: z.array(z.object({ name: z.string().nullish() })),
    rows: z.array(z.array(wireValue)),
  }),
);
const answerSchema = z.object({
  baton: z.string().nullish(),
  results: z.array(
    z.object({
      type: z.enum(["ok", "error"]),
      error: wireError.optional(),
      response: z
        .object({
          type: z.string(),
          result: z
            // Rows are looked at where they are wanted: a group of appends has many results and no rows.
            .object({
              step_results: z.array(z.unknown()),
              step_errors: z.array(wireError.nullable()),
            })
            .optional(),
        })
        .optional(),
    }),
  ),
});

type Answer = z.infer<typeof answerSchema>;

function parseAnswer(text: string): Answer {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw new FulgurError("ERR_STORE", `libSQL's answer is not JSON: ${text.slice(0, 100)}`, {
      cause,
    });
  }
  if (isUsual(json)) return json;
  const answer = answerSchema.safeParse(json);
  if (!answer.success) {
    throw new FulgurError("ERR_STORE", `libSQL's answer is not a hrana 3 pipeline result: ${text.slice(0, 100)}`);
  }
  return answer.data;
}

/**
 * The common case, an answer that tells of no error, narrowed by hand: inside workerd zod may not generate the code that makes
 * it quick, and every commit goes through here.
 */
function isUsual(json: unknown): json is Answer {
  if (!isRecord(json) || !Array.isArray(json["results"])) return false;
  const { baton } = json;
  return (
    (typeof baton === "string" || baton === null || baton === undefined) &&
    json["results"].every((each: unknown) => isRecord(each) && each["type"] === "ok" && isGood(each["response"]))
  );
}

function isGood(response: unknown): boolean {
  if (!isRecord(response) || typeof response["type"] !== "string") return false;
  const { result } = response;
  if (result === undefined) return true;
  if (!isRecord(result) || !Array.isArray(result["step_results"]) || !Array.isArray(result["step_errors"]))
    return false;
  return result["step_errors"].every((error: unknown) => error === null);
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null;
}

/** What each statement gave, of a batch that was committed. */
function resultsOf({ results }: Answer, statements: number): unknown[] {
  for (const { error } of results) if (error !== undefined) throw refused(error);
  const batch = results.find((result) => result.response?.type === "batch")?.response?.result;
  if (batch === undefined) throw new FulgurError("ERR_STORE", "libSQL's answer has no batch result");
  const failed = batch.step_errors.find((error) => error !== null);
  if (failed !== undefined && failed !== null) throw refused(failed);
  if (batch.step_results[statements + 1] === null)
    throw new FulgurError("ERR_STORE", "libSQL did not commit the batch");
  return batch.step_results.slice(1, statements + 1);
}

function rowsOf(results: readonly unknown[]): Row[][] {
  const parsed = stepResults.safeParse(results);
  if (!parsed.success) throw new FulgurError("ERR_STORE", "libSQL's answer has results of another form than hrana 3's");
  return parsed.data.map(({ cols, rows }) => {
    const names = cols.map(({ name }) => name ?? "");
    return rows.map((row) => Object.fromEntries(row.map((value, column) => [names[column] ?? "", fromWire(value)])));
  });
}

/** Tells a statement that is at fault for good from a disk that is full or failing and from what passes (busy). */
function refused({ message, code }: z.infer<typeof wireError>): FulgurError {
  const said = `${message} (${code ?? "no code"})`;
  if (/^SQLITE_(FULL|IOERR)/.test(code ?? "")) {
    return new FulgurError(
      "ERR_DISK",
      `libSQL cannot write to its disk, which is full or failing: ${said}; free some space, waiting writes then go through`,
    );
  }
  const isFault = /^(SQLITE_(CONSTRAINT|ERROR|MISMATCH|TOOBIG|RANGE|UNKNOWN)|SQL_|ARGS_)/.test(code ?? "");
  return new FulgurError(isFault ? "ERR_CONFLICT" : "ERR_STORE", `libSQL refused a write: ${said}`);
}

function fromWire({ type, value, base64 }: z.infer<typeof wireValue>): Value {
  if (type === "null") return null;
  if (type === "text") return String(value ?? "");
  return type === "blob" ? fromBase64(base64 ?? "") : Number(value);
}
