import { FulgurError } from "#shared/errors.ts";

/** What SQLite holds. Booleans are 0 and 1, JSON is text. */
export type Value = string | number | null | Uint8Array;

/** One SQL statement with positional (`?`) arguments: plain data, so that it crosses RPC and fits in an outbox. */
export interface Statement {
  readonly sql: string;
  readonly args: readonly Value[];
  /**
   * Its one argument is a JSON array of rows. Of a transaction's statements with the same SQL that gather, one runs, where the
   * first of them stands, with the rows of all: what each of many units adds to a counter costs one statement.
   */
  readonly gathers?: true;
}

/** A statement whose arguments are encoded already (encoded.ts): a writer passes them on as they are. */
export interface EncodedStatement {
  readonly sql: string;
  /** The JSON array of arguments that libSQL's interface takes. */
  readonly argsJson: string;
  /** As {@link Statement.gathers}. */
  readonly gathers?: true;
}

/** What a writer takes: encoding is cheap where a statement is made, and dear where all statements meet. */
export type Writable = Statement | EncodedStatement;

/** One result row by column name (snake_case, as in SQL). */
export type Row = Readonly<Record<string, Value>>;

/**
 * Statements for {@link StoreWriter.transact} together with what their rows mean.
 * @typeParam T what {@link Transaction.read} makes of the rows
 */
export interface Transaction<T> {
  readonly statements: Statement[];
  /** @throws FulgurError where the rows say that the change was refused; nothing was changed then */
  readonly read: (rows: readonly (readonly Row[])[]) => T;
}

/** Everything that writes to libSQL goes through one of these; edge/record/writer.ts is the real one. */
export interface StoreWriter {
  /**
   * Writes units of repeatable statements, each unit atomically; resolves when all are durable (in libSQL, or in the
   * writer's outbox while libSQL is away).
   * @throws FulgurError ERR_CONFLICT when libSQL refuses a unit, ERR_STORE when it is away and the outbox is full
   */
  append(units: readonly (readonly Writable[])[]): Promise<void>;
  /**
   * Runs the statements in one transaction, after everything appended before; gives the rows of each.
   * @throws FulgurError ERR_STORE while libSQL is away or the outbox is not drained, ERR_CONFLICT when it is refused
   */
  transact(statements: readonly Statement[]): Promise<Row[][]>;
  status(): Promise<WriterStatus>;
}

export interface WriterStatus {
  /** False while writes go to the outbox, or the outbox is not drained. */
  readonly storeUp: boolean;
  /** Units that wait in the outbox. */
  readonly outbox: number;
}

/** Runs a {@link Transaction} and reads its outcome. */
export async function transact<T>(writer: Pick<StoreWriter, "transact">, transaction: Transaction<T>): Promise<T> {
  return transaction.read(await writer.transact(transaction.statements));
}

/** The last result set's only row; a composed transaction ends with the SELECT that tells its outcome. */
export function lastRow(rows: readonly (readonly Row[])[]): Row | undefined {
  return rows.at(-1)?.[0];
}

/** A text column of a row. @throws FulgurError ERR_STORE when it is not text */
export function textOf(row: Row, column: string): string {
  const value = row[column];
  if (typeof value !== "string") throw mistyped("text", column, value);
  return value;
}

/** A number column of a row. @throws FulgurError ERR_STORE when it is not a number */
export function numberOf(row: Row, column: string): number {
  const value = row[column];
  if (typeof value !== "number") throw mistyped("a number", column, value);
  return value;
}

function mistyped(wanted: string, column: string, value: Value | undefined): FulgurError {
  return new FulgurError(
    "ERR_STORE",
    `column ${column} should hold ${wanted}, the store gave ${value === null ? "null" : typeof value}; are all migrations applied?`,
  );
}
