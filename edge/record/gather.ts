import { FulgurError } from "#shared/errors.ts";
import { encoded } from "#shared/store/encoded.ts";
import type { EncodedStatement, StoreWriter, Writable } from "#shared/store/statement.ts";
import { limits as limitsOfItsOwn, type Limits } from "../proxy/limits.ts";
import { writerError } from "./writer-client.ts";

/**
 * Appends of an isolate's concurrent requests, sent to the writer together: while one append is under way the next gather,
 * and one of the requests that wait then takes them along. A call to a Durable Object costs far more than what it
 * carries, and an object takes about a thousand of them a second.
 */
export interface Gatherer {
  /** As {@link StoreWriter.append}; `writer` and `limits` must be the asking request's own. */
  append(units: readonly (readonly Writable[])[], writer: Pick<StoreWriter, "append">, limits?: Limits): Promise<void>;
  /**
   * Whether so many appends wait for so long that a new request had better come again later: all share one thread, and the
   * more of them are under way, the more each is late.
   */
  isBehind(): boolean;
}

/** A writer that knows how far the isolate's appends are behind. */
export type GatheringWriter = StoreWriter & Pick<Gatherer, "isBehind">;

/**
 * So many that wait are sent without waiting for the append that is under way: the writer then has its next group at hand
 * while libSQL commits this one. It is also the most that one append takes along: requests whose answers leave all at once
 * bring their next calls all at once, and the isolate and libSQL then wait for each other in turn.
 */
const FULL = 64;
/** Of appends under way at once: together, what the writer commits as one group. */
const MOST_LEADERS = 4;
/** A request that has waited for so long takes care of itself: the one that went ahead for it may have been ended. */
const PATIENCE_MS = 8000;
/**
 * A refused call comes again after a second or more and has cost half of an answered one by then, so waiting is better
 * until it takes clearly longer than that.
 */
const BEHIND = { appends: 256, ms: 2000 } as const;
/** Behind, however fast they are stored. */
const MOST_OPEN = 1024;

export interface GathererOptions {
  readonly patienceMs?: number;
  readonly now?: () => number;
}

type Units = readonly (readonly EncodedStatement[])[];

/** `lead`: send your units and theirs. `alone`: nobody has stored it for you. */
type Outcome =
  | { readonly status: "stored" | "alone" }
  | { readonly status: "lead"; readonly leader: Leader }
  | { readonly status: "failed"; readonly cause: unknown };

interface Waiting {
  readonly units: Units;
  readonly settle: (outcome: Outcome) => void;
}

/** Of one append; those that it takes along are its own from the moment that it is named. */
interface Leader {
  readonly others: readonly Waiting[];
}

export function gatherer({ patienceMs = PATIENCE_MS, now = Date.now }: GathererOptions = {}): Gatherer {
  let waiting: Waiting[] = [];
  const leaders = new Set<Leader>();
  /** Appends that are not stored yet, the oldest first. */
  const open = new Set<{ readonly since: number }>();

  function mayLead(): boolean {
    return leaders.size === 0 || (leaders.size < MOST_LEADERS && waiting.length >= FULL);
  }

  function newLeader(): Leader {
    const leader: Leader = { others: waiting.splice(0, FULL) };
    leaders.add(leader);
    return leader;
  }

  /** Sends one's own units with those of others, then hands the lead on. */
  async function lead(own: Units, leader: Leader, writer: Pick<StoreWriter, "append">): Promise<void> {
    const { others } = leader;
    const settle = (outcome: Outcome): void => others.forEach((other) => other.settle(outcome));
    try {
      await writer.append([...own, ...others.flatMap(({ units }) => units)]);
      settle({ status: "stored" });
    } catch (cause) {
      if (others.length === 0) throw cause;
      if (!isRefusal(cause)) {
        settle({ status: "failed", cause });
        throw cause;
      }
      // One of the units is at fault; each finds out for itself. Writing a unit twice stores it once.
      settle({ status: "alone" });
      await writer.append(own);
    } finally {
      if (leaders.delete(leader) && mayLead()) {
        const next = waiting.shift();
        next?.settle({ status: "lead", leader: newLeader() });
      }
    }
  }

  async function queue(units: Units, limits: Limits): Promise<Outcome> {
    const { promise, resolve } = Promise.withResolvers<Outcome>();
    const mine: Waiting = { units, settle: resolve };
    waiting.push(mine);
    const callOff = limits.after(patienceMs, () => {
      waiting = waiting.filter((other) => other !== mine);
      // Whoever leads is not heard of any more.
      leaders.clear();
      resolve({ status: "alone" });
    });
    const outcome = await promise;
    callOff();
    return outcome;
  }

  async function stored(units: Units, writer: Pick<StoreWriter, "append">, limits: Limits): Promise<void> {
    if (mayLead()) return lead(units, newLeader(), writer);
    const outcome = await queue(units, limits);
    if (outcome.status === "lead") return lead(units, outcome.leader, writer);
    if (outcome.status === "alone") return writer.append(units);
    if (outcome.status === "failed") {
      const cause = writerError(outcome.cause);
      const code = cause instanceof FulgurError && cause.code === "ERR_DISK" ? "ERR_DISK" : "ERR_STORE";
      throw new FulgurError(code, "the writer did not take the record; try again in a second", { cause });
    }
  }

  return {
    async append(given, writer, limits = limitsOfItsOwn()) {
      const mine = { since: now() };
      open.add(mine);
      try {
        await stored(
          given.map((unit) => unit.map(encoded)),
          writer,
          limits,
        );
      } finally {
        open.delete(mine);
      }
    },
    isBehind() {
      if (open.size < BEHIND.appends) return false;
      const at = now();
      for (const append of open) {
        const waitedMs = at - append.since;
        // Past its own patience: its request was ended, and with it what would have taken it off the list.
        if (waitedMs > 2 * patienceMs) open.delete(append);
        else return open.size >= MOST_OPEN || (open.size >= BEHIND.appends && waitedMs > BEHIND.ms);
      }
      return false;
    },
  };
}

function isRefusal(cause: unknown): boolean {
  return cause instanceof Error && "code" in cause && cause.code === "ERR_CONFLICT";
}

const gatherers = new WeakMap<object, Gatherer>();

/**
 * A request's writer whose appends are sent together with those of the isolate's other requests.
 * @param isolate what lives as long as the isolate, such as its environment
 * @param stub makes the request's own way to the writer, where it is needed
 * @param limits the request's own
 */
export function gatheringWriter(isolate: object, stub: () => StoreWriter, limits?: Limits): GatheringWriter {
  let gathers = gatherers.get(isolate);
  if (gathers === undefined) gatherers.set(isolate, (gathers = gatherer()));
  const gathered = gathers;
  return {
    append: (units) => gathered.append(units, { append: (all) => stub().append(all) }, limits),
    transact: (statements) => stub().transact(statements),
    status: () => stub().status(),
    isBehind: () => gathered.isBehind(),
  };
}
