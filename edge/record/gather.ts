import { FulgurError } from "#shared/errors.ts";
import { encoded } from "#shared/store/encoded.ts";
import type { EncodedStatement, StoreWriter, Writable } from "#shared/store/statement.ts";
import { writerError } from "./writer-client.ts";

/**
 * Appends of an isolate's concurrent requests, sent to the writer together: while one append is under way the next gather,
 * and one of the requests that wait then takes them all. A call to a Durable Object costs far more than what it
 * carries, and an object takes about a thousand of them a second.
 */
export interface Gatherer {
  /** As {@link StoreWriter.append}; `writer` must be the asking request's own. */
  append(units: readonly (readonly Writable[])[], writer: Pick<StoreWriter, "append">): Promise<void>;
}

/**
 * So many that wait are sent without waiting for the append that is under way: the writer then has its next group at hand
 * while libSQL commits this one.
 */
const FULL = 64;
/** A request that has waited for so long takes care of itself: the one that went ahead for it may have been ended. */
const PATIENCE_MS = 8000;

type Units = readonly (readonly EncodedStatement[])[];

/** `lead`: take what has gathered and send it. `alone`: nobody has stored it for you. */
type Outcome =
  | { readonly status: "stored" | "lead" | "alone" }
  | { readonly status: "failed"; readonly cause: unknown };

interface Waiting {
  readonly units: Units;
  readonly settle: (outcome: Outcome) => void;
}

export function gatherer(patienceMs = PATIENCE_MS): Gatherer {
  let waiting: Waiting[] = [];
  const leaders = new Set<symbol>();

  /** Sends one's own units with all that wait, then hands the lead on. */
  async function lead(own: Units, writer: Pick<StoreWriter, "append">): Promise<void> {
    const me = Symbol("leader");
    leaders.add(me);
    const others = waiting;
    waiting = [];
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
      if (leaders.delete(me)) waiting.shift()?.settle({ status: "lead" });
    }
  }

  async function queue(units: Units): Promise<Outcome> {
    const { promise, resolve } = Promise.withResolvers<Outcome>();
    const mine: Waiting = { units, settle: resolve };
    waiting.push(mine);
    // The runtime ends a request that waits for nothing of its own, so each has a timer.
    const timer = setTimeout(() => {
      waiting = waiting.filter((other) => other !== mine);
      // Whoever leads is not heard of any more.
      leaders.clear();
      resolve({ status: "alone" });
    }, patienceMs);
    const outcome = await promise;
    clearTimeout(timer);
    return outcome;
  }

  return {
    async append(given, writer) {
      const units = given.map((unit) => unit.map(encoded));
      if (leaders.size === 0 || (leaders.size === 1 && waiting.length >= FULL)) return lead(units, writer);
      const outcome = await queue(units);
      if (outcome.status === "lead") return lead(units, writer);
      if (outcome.status === "alone") return writer.append(units);
      if (outcome.status === "failed") {
        const cause = writerError(outcome.cause);
        const code = cause instanceof FulgurError && cause.code === "ERR_DISK" ? "ERR_DISK" : "ERR_STORE";
        throw new FulgurError(code, "the writer did not take the record; try again in a second", { cause });
      }
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
 */
export function gatheringWriter(isolate: object, stub: () => StoreWriter): StoreWriter {
  let gathers = gatherers.get(isolate);
  if (gathers === undefined) gatherers.set(isolate, (gathers = gatherer()));
  const gathered = gathers;
  return {
    append: (units) => gathered.append(units, { append: (all) => stub().append(all) }),
    transact: (statements) => stub().transact(statements),
    status: () => stub().status(),
  };
}
