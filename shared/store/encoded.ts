import { toBase64 } from "./base64.ts";
import type { EncodedStatement, Value, Writable } from "./statement.ts";

/**
 * A statement in the form in which libSQL takes it (hrana 3, JSON), made once, where the statement is made: one text crosses
 * RPC for a fraction of what its values cost, and the writer, through which everything goes, only joins texts.
 */
export function encoded(statement: Writable): EncodedStatement {
  if ("argsJson" in statement) return statement;
  const { sql, args } = statement;
  let argsJson = "[";
  for (let at = 0; at < args.length; at++) {
    if (at > 0) argsJson += ",";
    argsJson += valueJson(args[at] ?? null);
  }
  return { sql, argsJson: `${argsJson}]` };
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
