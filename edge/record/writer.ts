import { DurableObject } from "cloudflare:workers";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { logger } from "#shared/log.ts";
import { openPipeline, type Pipeline } from "#shared/store/pipeline.ts";
import { encoded } from "#shared/store/encoded.ts";
import type { EncodedStatement, Row, Statement, StoreWriter, Writable, WriterStatus } from "#shared/store/statement.ts";
import { storeFetch } from "../config.ts";
import { shardOfObject, storeShards, type ShardVariables } from "../shards.ts";
import { openOutbox, type Outbox } from "./outbox.ts";

/**
 * The one writer of a libSQL database, which is a shard: a Durable Object, because libSQL's server stalls under several writing
 * connections and because concurrent writes then share one commit. One group at a time is under way; what arrives
 * meanwhile is the next group. While libSQL is away, appends go to the object's own SQLite and are written later, in
 * order; all statements are repeatable, so a group whose fate is unknown is simply written again.
 *
 * It knows nothing of what it writes.
 */

/** The direct ways to libSQL are bindings too, where the host has them: {@link storeFetch}. */
export interface WriterEnv extends ShardVariables {
  /** Its own namespace: which shard's writer it is follows from its name there. */
  readonly WRITER: DurableObjectNamespace;
  /** As in edge/config.ts. */
  readonly STORE_WRITE_TOKEN: string;
}

/** Bounds of one group: a commit of this size takes about 100 ms, and a request to libSQL stays far below its limits. */
const GROUP = { units: 256, bytes: 4 * 1024 * 1024 } as const;
/** Draining has nobody waiting for it. */
const DRAIN_GROUP = { units: 256, bytes: 2 * 1024 * 1024 } as const;
/** The outbox takes records faster than libSQL: of what comes while it is drained, half as much goes in as goes out. */
const CATCH_UP_GROUP = { units: DRAIN_GROUP.units / 2, bytes: DRAIN_GROUP.bytes / 2 } as const;
/** What may wait in memory, in bytes, before callers are asked to slow down. */
const MAX_WAITING_BYTES = 48 * 1024 * 1024;
const COMMIT_TIMEOUT_MS = 5000;
const PROBE_TIMEOUT_MS = 1000;
/** A success this recent says that libSQL is there. */
const FRESH_MS = 500;
/** A group under way for longer says that it is not. */
const SLOW_MS = 1500;
const RETRY_FIRST_MS = 100;
const RETRY_MAX_MS = 1000;

const log = logger("writer");

interface Waiting {
  readonly statements: readonly EncodedStatement[];
  readonly bytes: number;
  /** Appends may wait in the outbox; a transaction's rows are wanted now or not at all. */
  readonly kind: "append" | "transact";
  readonly resolve: (rows: Row[][]) => void;
  readonly reject: (error: unknown) => void;
}

/** A group on its way from the outbox to libSQL, which is there again. */
interface DrainRun {
  readonly ended: Promise<void>;
  /** Nothing else is in the outbox, so nothing may be put into it: it would never be empty. */
  readonly takesAll: boolean;
}

export class Writer extends DurableObject<WriterEnv> implements StoreWriter {
  readonly #pipeline: Pipeline;
  readonly #outbox: Outbox;
  #waiting: Waiting[] = [];
  #waitingBytes = 0;
  #pumping = false;
  /** While set, nothing but the drain talks to libSQL, so that order is kept. */
  #away: boolean;
  #catchingUp: DrainRun | undefined;
  #retryMs = RETRY_FIRST_MS;
  #lastSuccessAt = 0;
  #groupSince: number | undefined;
  #probe: Promise<boolean> | undefined;

  constructor(ctx: DurableObjectState, env: WriterEnv) {
    super(ctx, env);
    const shards = storeShards(env, env.STORE_WRITE_TOKEN);
    const { url, token, index } = shardOfObject(env.WRITER, ctx.id, { kind: "writer", shards });
    this.#pipeline = openPipeline({
      url,
      token,
      timeoutMs: COMMIT_TIMEOUT_MS,
      keepStream: true,
      fetch: storeFetch(env, index),
    });
    this.#outbox = openOutbox(ctx.storage.sql);
    // What an earlier life of this object left comes first.
    this.#away = this.#outbox.size > 0;
    if (this.#away) void ctx.blockConcurrencyWhile(() => ctx.storage.setAlarm(Date.now()));
  }

  async append(units: readonly (readonly Writable[])[]): Promise<void> {
    const settled = await Promise.allSettled(units.map((statements) => this.#enqueue(statements, "append")));
    for (const outcome of settled) if (outcome.status === "rejected") throw outcome.reason;
  }

  async transact(statements: readonly Statement[]): Promise<Row[][]> {
    return this.#enqueue(statements, "transact");
  }

  async status(): Promise<WriterStatus> {
    return { storeUp: await this.#isUp(), outbox: this.#outbox.size };
  }

  /** Drains the outbox; called again until it is empty. */
  override async alarm(): Promise<void> {
    try {
      await this.#drain();
      this.#retryMs = RETRY_FIRST_MS;
    } catch (error) {
      log.warning("outbox.waiting", { units: this.#outbox.size, reason: messageOf(error) });
      this.#retryMs = Math.min(RETRY_MAX_MS, this.#retryMs * 2);
      await this.ctx.storage.setAlarm(Date.now() + this.#retryMs);
    }
  }

  #enqueue(given: readonly Writable[], kind: Waiting["kind"]): Promise<Row[][]> {
    const statements = given.map(encoded);
    const bytes = bytesOf(statements);
    if (this.#waitingBytes + bytes > MAX_WAITING_BYTES && this.#waiting.length > 0) {
      return Promise.reject(
        new FulgurError("ERR_OVERLOADED", `${this.#waiting.length} writes wait for libSQL already; try again shortly`),
      );
    }
    const { promise, resolve, reject } = Promise.withResolvers<Row[][]>();
    this.#waiting.push({ statements, bytes, kind, resolve, reject });
    this.#waitingBytes += bytes;
    void this.#pump();
    return promise;
  }

  async #pump(): Promise<void> {
    if (this.#pumping) return;
    this.#pumping = true;
    try {
      while (this.#waiting.length > 0) {
        if (!this.#away) await this.#commit(this.#take(GROUP.units, GROUP.bytes));
        else if (this.#catchingUp === undefined) {
          await this.#divert(this.#take(this.#waiting.length, Number.POSITIVE_INFINITY));
        } else {
          await this.#catchingUp.ended;
          // Another group may be on its way already.
          if (!this.#away || this.#catchingUp === undefined || this.#catchingUp.takesAll) continue;
          await this.#divert(this.#take(CATCH_UP_GROUP.units, CATCH_UP_GROUP.bytes));
        }
      }
    } finally {
      this.#pumping = false;
    }
  }

  #take(units: number, bytes: number): Waiting[] {
    let count = 0;
    let sum = 0;
    for (const { bytes: more } of this.#waiting) {
      if (count === units || (count > 0 && sum + more > bytes)) break;
      count += 1;
      sum += more;
    }
    this.#waitingBytes -= sum;
    return this.#waiting.splice(0, count);
  }

  /** One transaction for the whole group; when libSQL refuses it, one for each unit, so that only the culprit fails. */
  async #commit(group: readonly Waiting[]): Promise<void> {
    try {
      const rows = await this.#run(
        group.flatMap(({ statements }) => statements),
        group.some(({ kind }) => kind === "transact"),
      );
      let at = 0;
      for (const { statements, resolve } of group) resolve(rows.slice(at, (at += statements.length)));
    } catch (error) {
      const refused = error instanceof FulgurError && error.code === "ERR_CONFLICT";
      if (!refused) {
        this.#leave(error);
        await this.#divert(group);
        return;
      }
      const [only, ...others] = group;
      if (others.length === 0) {
        only?.reject(error);
        return;
      }
      for (const [at, unit] of group.entries()) {
        await this.#commit([unit]);
        if (this.#away) {
          await this.#divert(group.slice(at + 1));
          return;
        }
      }
    }
  }

  async #run(statements: readonly EncodedStatement[], wantsRows: boolean): Promise<Row[][]> {
    this.#groupSince = Date.now();
    try {
      const rows = await this.#pipeline.run(statements, { rows: wantsRows ? "all" : "none" });
      this.#lastSuccessAt = Date.now();
      return rows;
    } finally {
      this.#groupSince = undefined;
    }
  }

  #leave(error: unknown): void {
    if (this.#away) return;
    this.#away = true;
    log.warning("store.away", { reason: messageOf(error) });
  }

  /** libSQL is away: appends become durable here, transactions are refused. */
  async #divert(group: readonly Waiting[]): Promise<void> {
    for (const { kind, reject } of group) {
      if (kind === "transact") {
        reject(new FulgurError("ERR_STORE", "the store is away or catching up; try again in a second"));
      }
    }
    const appends = group.filter(({ kind }) => kind === "append");
    try {
      this.ctx.storage.transactionSync(() => this.#outbox.put(appends.map(({ statements }) => statements)));
      if ((await this.ctx.storage.getAlarm()) === null) await this.ctx.storage.setAlarm(Date.now() + this.#retryMs);
      await this.ctx.storage.sync();
      for (const { resolve } of appends) resolve([]);
    } catch (error) {
      for (const { reject } of appends) reject(error);
    }
  }

  async #drain(): Promise<void> {
    for (let reached = false; ; reached = true) {
      const units = this.#outbox.peek(DRAIN_GROUP);
      if (units.length === 0) {
        // Nothing is awaited between the look and this, so nothing can have been put in between.
        if (this.#away) log.info("store.back", {});
        this.#away = false;
        return;
      }
      const { promise: ended, resolve: end } = Promise.withResolvers<void>();
      // Not before something was written: while libSQL hangs, appends must not wait for it.
      if (reached) this.#catchingUp = { ended, takesAll: units.length === this.#outbox.size };
      try {
        await this.#drainGroup(units);
      } finally {
        this.#catchingUp = undefined;
        end();
      }
    }
  }

  async #drainGroup(units: ReturnType<Outbox["peek"]>): Promise<void> {
    try {
      await this.#run(
        units.flatMap(({ statements }) => statements),
        false,
      );
      this.#outbox.remove(units);
    } catch (error) {
      if (!(error instanceof FulgurError && error.code === "ERR_CONFLICT")) throw error;
      for (const unit of units) await this.#drainOne(unit);
    }
  }

  async #drainOne(unit: ReturnType<Outbox["peek"]>[number]): Promise<void> {
    try {
      await this.#run(unit.statements, false);
      this.#outbox.remove([unit]);
    } catch (error) {
      if (!(error instanceof FulgurError && error.code === "ERR_CONFLICT")) throw error;
      log.error("outbox.refused", { seq: unit.seq, reason: error.message });
      this.#outbox.setAside(unit, error.message, Date.now());
    }
  }

  async #isUp(): Promise<boolean> {
    if (this.#away) return false;
    const now = Date.now();
    if (this.#groupSince !== undefined) return now - this.#groupSince < SLOW_MS;
    if (now - this.#lastSuccessAt < FRESH_MS) return true;
    // Nobody has written for a while: ask, so that the first caller after a crash is told before it spends anything.
    this.#probe ??= this.#pipeline
      .run([{ sql: "select 1", args: [] }], { timeoutMs: PROBE_TIMEOUT_MS })
      .then(
        () => {
          this.#lastSuccessAt = Date.now();
          return true;
        },
        () => false,
      )
      .finally(() => (this.#probe = undefined));
    return this.#probe;
  }
}

/** About what the statements take on the wire; the SQL text goes over once a group. */
function bytesOf(statements: readonly EncodedStatement[]): number {
  return statements.reduce((sum, { argsJson }) => sum + argsJson.length, 0);
}
