/** Whether two queries give the same rows, on a database that is thrown away. It knows nothing of agents or rewards. */

export interface MatchRequest {
  /** SQL that makes and fills the tables. */
  readonly setup: string;
  readonly query: string;
  readonly expected: string;
}

export type MatchOutcome =
  | { readonly ran: boolean; readonly equal: boolean; readonly error?: string }
  /** The evaluation itself is at fault. */
  | { readonly error: string };

type SqlValue = string | number | ArrayBuffer | null;

/** What is used of a Durable Object's storage. */
export interface ScratchStorage {
  readonly sql: { exec(query: string): { raw(): IterableIterator<SqlValue[]> } };
  transactionSync<T>(work: () => T): T;
}

/** Of one query; more are a mistake (a join without its condition) and cost memory. */
const MAX_ROWS = 10_000;
/** Numbers are compared to so many digits: sums come out differently in another order. */
const DIGITS = 9;

/**
 * Runs setup, the expected query and the query, each query on the tables as setup made them. Rows are compared as a bag,
 * in order where the expected query's text has an ORDER BY; column names do not count.
 */
export function runMatch(storage: ScratchStorage, { setup, query, expected }: MatchRequest): MatchOutcome {
  const wanted = scratch(storage, setup, expected);
  if ("error" in wanted) return { error: `the expected query: ${wanted.error}` };
  const given = scratch(storage, setup, query);
  if ("error" in given) return { ran: false, equal: false, error: given.error };
  const isOrdered = /\border\s+by\b/i.test(expected);
  return { ran: true, equal: digest(given.rows, isOrdered) === digest(wanted.rows, isOrdered) };
}

type Ran = { readonly rows: readonly SqlValue[][] } | { readonly error: string };

function scratch(storage: ScratchStorage, setup: string, query: string): Ran {
  let ran: Ran = { error: "it did not run" };
  try {
    storage.transactionSync(() => {
      if (setup.trim() !== "") storage.sql.exec(setup);
      ran = rowsOf(storage, query);
      throw new RollBack();
    });
  } catch (thrown) {
    if (!(thrown instanceof RollBack)) return { error: thrown instanceof Error ? thrown.message : String(thrown) };
  }
  return ran;
}

class RollBack extends Error {}

function rowsOf(storage: ScratchStorage, query: string): Ran {
  const rows: SqlValue[][] = [];
  for (const row of storage.sql.exec(query).raw()) {
    if (rows.length === MAX_ROWS) return { error: `it gives more than ${MAX_ROWS} rows` };
    rows.push(row);
  }
  return { rows };
}

function digest(rows: readonly SqlValue[][], isOrdered: boolean): string {
  const texts = rows.map((row) => JSON.stringify(row.map(comparable)));
  return (isOrdered ? texts : texts.sort()).join("\n");
}

function comparable(value: SqlValue): string | number | null {
  if (typeof value === "number") return Number(value.toPrecision(DIGITS));
  if (value instanceof ArrayBuffer) return `blob:${[...new Uint8Array(value)].join(",")}`;
  return value;
}
