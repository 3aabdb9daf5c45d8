import { FulgurError, messageOf } from "#shared/errors.ts";
import type { EncodedStatement } from "#shared/store/statement.ts";

/**
 * Units of statements that wait for libSQL, in the Durable Object's own SQLite: in order, each whole or not at all.
 * It knows nothing of when or how they are written.
 */
export interface Outbox {
  /** Units that wait. */
  readonly size: number;
  /** @throws FulgurError ERR_STORE when it is full; what came before stays */
  put(units: readonly (readonly EncodedStatement[])[]): void;
  /** The oldest units, at most so many and so many bytes (always one, if there is one). */
  peek(limit: { readonly units: number; readonly bytes: number }): readonly OutboxUnit[];
  remove(units: readonly OutboxUnit[]): void;
  /** Sets a unit aside that libSQL refuses for good, with the reason, so that it neither blocks the others nor is lost. */
  setAside(unit: OutboxUnit, reason: string, now: number): void;
}

export interface OutboxUnit {
  readonly seq: number;
  readonly statements: readonly EncodedStatement[];
}

export interface OutboxBounds {
  readonly maxUnits?: number;
  readonly maxBytes?: number;
}

/** A Durable Object's row holds 2 MB; UTF-8 takes up to 3 bytes a UTF-16 unit. */
const CHUNK_CHARS = 500_000;

export function openOutbox(sql: SqlStorage, bounds: OutboxBounds = {}): Outbox {
  const { maxUnits = 100_000, maxBytes = 512 * 1024 * 1024 } = bounds;
  sql.exec(`create table if not exists outbox (seq integer not null, part integer not null, body text not null,
    primary key (seq, part)) without rowid`);
  sql.exec(`create table if not exists refused (seq integer primary key, at integer not null, reason text not null,
    body text not null)`);
  const kept = sql
    .exec<{ units: number; chars: number; newest: number }>(
      `select count(distinct seq) as units, coalesce(sum(length(body)), 0) as chars, coalesce(max(seq), 0) as newest
       from outbox`,
    )
    .one();
  let size = kept.units;
  let chars = kept.chars;
  let newest = Math.max(
    kept.newest,
    sql.exec<{ newest: number }>(`select coalesce(max(seq), 0) as newest from refused`).one().newest,
  );

  const remove = (units: readonly OutboxUnit[]): void => {
    for (const { seq } of units) {
      const gone = sql
        .exec<{ length: number }>(`delete from outbox where seq = ? returning length(body) as length`, seq)
        .toArray();
      for (const { length } of gone) chars -= length;
    }
    size -= units.length;
  };

  return {
    get size() {
      return size;
    },
    put(units) {
      const bodies = units.map(encode);
      const more = bodies.reduce((sum, body) => sum + body.length, 0);
      if (size + bodies.length > maxUnits || chars + more > maxBytes) throw full(size, chars);
      try {
        for (const body of bodies) {
          newest += 1;
          for (let part = 0; part * CHUNK_CHARS < body.length; part++) {
            const text = body.slice(part * CHUNK_CHARS, (part + 1) * CHUNK_CHARS);
            sql.exec(`insert into outbox (seq, part, body) values (?, ?, ?)`, newest, part, text);
          }
        }
      } catch (cause) {
        throw new FulgurError(
          "ERR_DISK",
          `libSQL is away and the writer's outbox cannot take more (${messageOf(cause)}); free some disk space and start the store`,
          { cause },
        );
      }
      size += bodies.length;
      chars += more;
    },
    peek(limit) {
      const units: OutboxUnit[] = [];
      let bytes = 0;
      let seq = -1;
      let body = "";
      const finish = (): boolean => {
        if (seq < 0) return true;
        if (units.length > 0 && bytes + body.length > limit.bytes) return false;
        bytes += body.length;
        units.push({ seq, statements: decode(body) });
        return units.length < limit.units;
      };
      for (const row of sql.exec<{ seq: number; body: string }>(`select seq, body from outbox order by seq, part`)) {
        if (row.seq !== seq) {
          if (!finish()) return units;
          seq = row.seq;
          body = "";
        }
        body += row.body;
      }
      finish();
      return units;
    },
    remove,
    setAside(unit, reason, now) {
      sql.exec(
        `insert or replace into refused (seq, at, reason, body) values (?, ?, ?, ?)`,
        unit.seq,
        now,
        reason,
        // A refused unit is for a person to look at; one too large for a row is told by its beginning.
        encode(unit.statements).slice(0, CHUNK_CHARS),
      );
      remove([unit]);
    },
  };
}

function full(units: number, chars: number): FulgurError {
  return new FulgurError(
    "ERR_STORE",
    `libSQL is away and the writer's outbox is full (${units} units, ${Math.round(chars / 1024 / 1024)} MB); start the store, waiting writes then drain`,
  );
}

function encode(statements: readonly EncodedStatement[]): string {
  return JSON.stringify(
    statements.map(({ sql, argsJson, gathers }) =>
      gathers === undefined ? [sql, argsJson] : [sql, argsJson, gathers],
    ),
  );
}

function decode(body: string): EncodedStatement[] {
  // Written by encode in this very file, in a table that nothing else writes.
  const rows = JSON.parse(body) as [string, string, true?][];
  return rows.map(([sql, argsJson, gathers]) =>
    gathers === undefined ? { sql, argsJson } : { sql, argsJson, gathers },
  );
}
