import { toBase64 } from "./base64.ts";
import type { EncodedStatement, Value, Writable } from "./statement.ts";

/**
 * A statement in the form in which libSQL takes it (hrana 3, JSON), made once, where the statement is made: one text crosses
 * RPC for a fraction of what its values cost, and the writer, through which everything goes, only joins texts.
 */
export function encoded(statement: Writable): EncodedStatement {
  if ("argsJson" in statement) return statement;
  const { sql, args, gathers } = statement;
  let argsJson = "[";
  for (let at = 0; at < args.length; at++) {
    if (at > 0) argsJson += ",";
    argsJson += valueJson(args[at] ?? null);
  }
  argsJson += "]";
  return gathers === undefined ? { sql, argsJson } : { sql, argsJson, gathers };
}

/** Statements as they run, and for each given one which of those it became. */
export interface Gathered {
  readonly statements: readonly EncodedStatement[];
  readonly places: readonly number[];
}

/** A transaction's statements with those that gather put together; see {@link Statement.gathers}. */
export function gathered(given: readonly Writable[]): Gathered {
  const statements: EncodedStatement[] = [];
  const places: number[] = [];
  const rows = new Map<string, { readonly place: number; readonly texts: string[] }>();
  for (const statement of given.map(encoded)) {
    const others = statement.gathers === undefined ? undefined : rows.get(statement.sql);
    if (others === undefined) {
      places.push(statements.length);
      if (statement.gathers !== undefined) {
        rows.set(statement.sql, { place: statements.length, texts: [statement.argsJson] });
      }
      statements.push(statement);
    } else {
      places.push(others.place);
      others.texts.push(statement.argsJson);
    }
  }
  for (const [sql, { place, texts }] of rows) {
    if (texts.length > 1) statements[place] = { sql, argsJson: joinedRows(texts) };
  }
  return { statements, places };
}

/** The arguments of one statement with the rows of several. */
function joinedRows(texts: readonly string[]): string {
  const rows = texts.map((text) => {
    // Each was written by encoded(), from a text that is a JSON array.
    const [{ value }] = JSON.parse(text) as [{ value: string }];
    return value.slice(1, -1);
  });
  return `[${valueJson(`[${rows.join(",")}]`)}]`;
}

function valueJson(value: Value): string {
  if (value === null) return `{"type":"null"}`;
  // Half a surrogate pair has no UTF-8: the server would refuse the whole request that it is in.
  if (typeof value === "string") return `{"type":"text","value":${JSON.stringify(value.toWellFormed())}}`;
  if (typeof value === "number") {
    // An integer goes as text, because it may have 64 bits.
    return Number.isSafeInteger(value)
      ? `{"type":"integer","value":"${value}"}`
      : `{"type":"float","value":${JSON.stringify(value)}}`;
  }
  return `{"type":"blob","base64":"${toBase64(value)}"}`;
}
