import { getTableColumns, getTableName, is, SQL, type InferInsertModel, type InferSelectModel } from "drizzle-orm";
import type { SQLiteTable } from "drizzle-orm/sqlite-core";
import { FulgurError } from "#shared/errors.ts";
import type { Row, Statement, Value } from "./statement.ts";

/** What a repeated insert does; never an error, because every write may be repeated. */
export type OnConflict = "do nothing" | `(${string}) do update set${string}`;

/**
 * An insert of one row of a table. The SQL text is made once and every column is bound, so that the hot path (one call
 * record) costs no query building.
 */
export function insertInto<T extends SQLiteTable>(
  table: T,
  onConflict: OnConflict = "do nothing",
): (row: InferInsertModel<T>) => Statement {
  return compile(table, onConflict, []);
}

/** As {@link insertInto}, with JSON columns that are given as text and written as they are. */
export function insertWithText<T extends SQLiteTable, K extends keyof InferInsertModel<T> & string>(
  table: T,
  asText: readonly K[],
): (row: Omit<InferInsertModel<T>, K> & { readonly [P in K]: string | null }) => Statement {
  return compile(table, "do nothing", asText);
}

function compile(table: SQLiteTable, onConflict: OnConflict, asText: readonly string[]): (row: object) => Statement {
  const columns = Object.entries(getTableColumns(table)).map(([key, column]) => ({
    key,
    name: column.name,
    asText: asText.includes(key),
    otherwise: is(column.default, SQL) ? undefined : column.default,
    // JSON has a null of its own, for columns that must hold something.
    none: column.notNull && column.dataType === "json" ? "null" : null,
    toDriver: (value: unknown): unknown => column.mapToDriverValue(value),
  }));
  const names = columns.map(({ name }) => `"${name}"`).join(", ");
  const marks = columns.map(() => "?").join(", ");
  const sql = `insert into "${getTableName(table)}" (${names}) values (${marks}) on conflict ${onConflict}`;
  return (row) => {
    const fields = row as Readonly<Record<string, unknown>>;
    return {
      sql,
      args: columns.map(({ key, name, asText, otherwise, none, toDriver }) => {
        const given = fields[key] === undefined ? otherwise : fields[key];
        if (given === null) return none;
        return given === undefined ? null : bound(asText ? given : toDriver(given), name);
      }),
    };
  };
}

/** A result row of `returning *` or `select *` as the table's own type. Columns that are missing stay undefined. */
export function rowFrom<T extends SQLiteTable>(table: T, row: Row): InferSelectModel<T> {
  const fields: Record<string, unknown> = {};
  for (const [key, column] of Object.entries(getTableColumns(table))) {
    const value = row[column.name];
    fields[key] = value === undefined || value === null ? null : column.mapFromDriverValue(value);
  }
  // Each field was mapped by its own column; drizzle's inferred type cannot be built field by field.
  return fields as InferSelectModel<T>;
}

function bound(value: unknown, column: string): Value {
  if (typeof value === "string" || typeof value === "number" || value instanceof Uint8Array) return value;
  throw new FulgurError("ERR_STORE", `column ${column} cannot hold a value of type ${typeof value}`);
}
