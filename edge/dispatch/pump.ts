import { FulgurError, messageOf } from "#shared/errors.ts";
import { logger } from "#shared/log.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import {
  leaseRollouts,
  listQueuedAgents,
  type AttemptRef,
  type LeasedRollout,
  type Rollout,
} from "#shared/store/rollouts.ts";
import type { StoreWriter } from "#shared/store/statement.ts";
import type { Json } from "#shared/tables.ts";
import type { EvaluatorDeps } from "../record/evaluators/contract.ts";
import { settleAttempts, type Answered, type Ending, type FinishDeps, type RewardWeights } from "../record/finish.ts";
import type { Judgement } from "../record/judgement.ts";
import type { AgentAnswer } from "./invoke.ts";
import { LEASE_MS, recover, sweep } from "./sweep.ts";

/** What the pump needs to know of an agent; the edge's configuration has it. */
export interface PumpAgent extends RewardWeights {
  /** Attempts that run at a time. */
  readonly concurrency: number;
  readonly timeoutMs: number;
}

/** The agents of all tenants of the shard. */
export interface PumpAgents {
  /** A tenant's, as they were at the last refresh. */
  of(tenantId: string): Readonly<Record<string, PumpAgent>>;
  refresh(db: StoreDb): Promise<void>;
}

export interface PumpDeps {
  readonly writer: Pick<StoreWriter, "transact" | "status">;
  /** A connection for the reads of one round; a Worker's may not be kept. */
  readonly connect: () => StoreDb;
  readonly agents: PumpAgents;
  /** For judges that have to ask somebody; without it they cannot judge. */
  readonly evaluators?: EvaluatorDeps;
  /** Runs the agent once; should end soon after the signal. */
  readonly invoke: (rollout: Rollout, input: Json, signal: AbortSignal) => Promise<AgentAnswer>;
  /** Asks to be given {@link Pump.tick} at that time at the latest (milliseconds since the epoch). */
  readonly callAt: (time: number) => void;
  readonly now: () => number;
  readonly random: () => number;
}

/** While attempts run, the pump is ticked this often: it extends leases and notices cancelled rollouts. */
export const TICK_MS = 5_000;
/** How long it waits when the store does not take an answer. */
const STORE_RETRY_MS = 1_000;
/** Endings and leases of one transaction. */
const MAX_GROUP = 64;

const log = logger("dispatch");

/** An agent of a tenant. */
interface Place {
  readonly tenantId: string;
  readonly agent: string;
}

interface Running {
  readonly ref: AttemptRef;
  readonly place: Place;
  /** Ends the attempt without an ending: the store no longer waits for it. */
  readonly abandon: AbortController;
}

/**
 * Keeps each agent as busy as its concurrency allows: leases queued rollouts, runs them, settles how they ended.
 * The store is the truth; what is kept here are the attempts that run now, so a crash loses nothing but time.
 *
 * There is no polling. Something to do is signalled by {@link wake} (rollouts were queued), by an attempt that ends, and
 * by {@link tick}; then one loop takes all endings and all free places into one transaction, again and again until
 * there is nothing left. What ends while a transaction is under way shares the next one.
 */
export class Pump {
  readonly #deps: PumpDeps;
  readonly #running = new Map<string, Running>();
  #endings: Ending[] = [];
  /** Ended attempts whose judge is being asked, by rollout. */
  readonly #judging = new Map<string, Answered>();
  /** Agents that may have queued rollouts whose time has come, by {@link placeKey}. */
  readonly #hungry = new Map<string, Place>();
  /** Whether rollouts may have been queued for agents that are not hungry yet. */
  #queued = false;
  /** Whether what a dispatcher before this one had leased is queued again. */
  #recovered = false;
  #looping = false;
  #again = false;
  /** So many endings are settled one at a time, because the store refused them together. */
  #oneByOne = 0;
  #sweptAt = 0;

  constructor(deps: PumpDeps) {
    this.#deps = deps;
  }

  /** Attempts that run now, by tenant and agent. */
  get running(): ReadonlyMap<string, number> {
    const counts = new Map<string, number>();
    for (const { place } of this.#running.values()) {
      const key = placeKey(place);
      counts.set(key, (counts.get(key) ?? 0) + 1);
    }
    return counts;
  }

  /** Rollouts may have been queued. Returns at once; resolves when there was nothing left to lease or settle. */
  async wake(): Promise<void> {
    this.#queued = true;
    if (this.#deps.now() - this.#sweptAt >= TICK_MS) await this.tick();
    else await this.#loop();
  }

  /** Heartbeat and sweep, then as {@link wake}. Never throws: while the store is away it asks to be called again. */
  async tick(): Promise<void> {
    const { now, callAt } = this.#deps;
    this.#sweptAt = now();
    try {
      const deps = { db: this.#deps.connect(), writer: this.#deps.writer, now };
      await this.#recoverOnce();
      await this.#deps.agents.refresh(deps.db);
      const { expired, idle, lost, nextDue } = await sweep(deps, this.#held());
      if (expired.length > 0) log.warn("lease.expired", { rolloutIds: expired });
      const unsettled = new Set([...this.#endings, ...this.#judging.values()].map(({ rolloutId }) => rolloutId));
      for (const { result, ...ref } of idle) {
        if (!unsettled.has(ref.rolloutId)) this.#endings.push({ ...ref, type: "answered", result, reward: null });
      }
      for (const { rolloutId, attempt } of lost) {
        const running = this.#running.get(rolloutId);
        if (running?.ref.attempt === attempt) running.abandon.abort();
      }
      if (nextDue !== undefined) {
        if (nextDue > now()) callAt(nextDue);
        else this.#queued = true;
      }
    } catch (thrown) {
      this.#waitForStore(thrown);
    }
    await this.#loop();
    if (this.#running.size > 0 || this.#judging.size > 0) callAt(now() + TICK_MS);
  }

  async #loop(): Promise<void> {
    this.#again = true;
    if (this.#looping) return;
    this.#looping = true;
    try {
      // Set by whoever finds the loop running: what came after a round's last look is seen by another round.
      while (this.#again) {
        this.#again = false;
        await this.#recoverOnce();
        await this.#findHungry();
        if (await this.#round()) this.#again = true;
      }
    } catch (thrown) {
      this.#waitForStore(thrown);
    } finally {
      this.#looping = false;
    }
  }

  async #recoverOnce(): Promise<void> {
    if (this.#recovered) return;
    const { connect, writer, now } = this.#deps;
    const orphans = await recover({ db: connect(), writer, now }, this.#held());
    this.#recovered = true;
    if (orphans > 0) log.warn("attempts.orphaned", { count: orphans });
  }

  /** Which agents have work, and what their settings are now. */
  async #findHungry(): Promise<void> {
    if (!this.#queued) return;
    // Cleared before the question is asked: a wake-up while it is under way asks again.
    this.#queued = false;
    const { connect, agents, now } = this.#deps;
    try {
      const db = connect();
      const [found] = await Promise.all([listQueuedAgents(db, now()), agents.refresh(db)]);
      for (const place of found) this.#hungry.set(placeKey(place), place);
    } catch (thrown) {
      this.#queued = true;
      throw thrown;
    }
  }

  /** One transaction: settles what has ended, fills the places that are free. False where there was neither. */
  async #round(): Promise<boolean> {
    const { connect, writer, agents, now, random, callAt } = this.#deps;
    // Of one tenant, whose agents say how they are rewarded; the others' are of the next round.
    const tenantId = this.#endings[0]?.tenantId ?? "";
    const endings = this.#endings
      .filter((ending) => ending.tenantId === tenantId)
      .slice(0, this.#oneByOne > 0 ? 1 : MAX_GROUP);
    const { running } = this;
    const leases = [...this.#hungry].flatMap(([key, place]) => {
      const known = agents.of(place.tenantId);
      const concurrency = Object.hasOwn(known, place.agent) ? (known[place.agent]?.concurrency ?? 0) : 0;
      const limit = Math.min(concurrency - (running.get(key) ?? 0), MAX_GROUP);
      return limit <= 0
        ? []
        : [{ key, place, limit, lease: leaseRollouts({ ...place, limit, now: now(), leaseMs: LEASE_MS }) }];
    });
    if (endings.length === 0 && leases.length === 0) return false;
    // Cleared before the question is asked: a wake-up while it is under way counts for the next round.
    for (const { key } of leases) this.#hungry.delete(key);

    let outcome;
    try {
      const deps: FinishDeps = {
        db: connect(),
        writer,
        agents: agents.of(tenantId),
        ...(this.#deps.evaluators === undefined ? {} : { evaluators: this.#deps.evaluators }),
        judgeLater: (ending, judgement) => void this.#judge(ending, judgement),
        now,
        random,
      };
      outcome = await settleAttempts(
        deps,
        endings,
        leases.flatMap(({ lease }) => lease.statements),
      );
    } catch (thrown) {
      for (const { key, place } of leases) this.#hungry.set(key, place);
      // The transaction's fate may be unknown: what it leased, if it did, runs nowhere.
      if (leases.length > 0) this.#recovered = false;
      if (isPassing(thrown) || endings.length === 0) throw thrown;
      this.#refuse(endings, thrown);
      return true;
    }
    if (this.#oneByOne > 0) this.#oneByOne--;
    const settled = new Set(endings);
    this.#endings = this.#endings.filter((ending) => !settled.has(ending));
    for (const became of outcome.settled) {
      if (became.status === "queued") callAt(became.notBefore);
    }
    let offset = 0;
    for (const { key, place, limit, lease } of leases) {
      const leased = lease.read(outcome.rows.slice(offset, offset + lease.statements.length));
      offset += lease.statements.length;
      if (leased.length === limit) this.#hungry.set(key, place);
      if (leased.length > 0) callAt(now() + TICK_MS);
      for (const one of leased) void this.#run(one);
    }
    return true;
  }

  /** Runs one attempt to its ending. Never throws. */
  async #run({ rollout, input }: LeasedRollout): Promise<void> {
    const { agents, invoke } = this.#deps;
    const { tenantId, agent } = rollout;
    const ref = { tenantId, rolloutId: rollout.id, attempt: rollout.attempt };
    const abandon = new AbortController();
    this.#running.set(rollout.id, { ref, place: { tenantId, agent }, abandon });
    const timeoutMs = agents.of(tenantId)[agent]?.timeoutMs ?? 0;
    const answer = await withTimeout(timeoutMs, abandon.signal, (signal) => invoke(rollout, input, signal));
    if (this.#running.get(rollout.id)?.ref === ref) this.#running.delete(rollout.id);
    if (answer.type === "broken") {
      log.warn("attempt.broken", { rolloutId: ref.rolloutId, attempt: ref.attempt, reason: answer.reason });
    }
    if (answer.type === "answered") this.#endings.push({ ...ref, ...answer, reward: null });
    if (answer.type === "broken") this.#endings.push({ ...ref, ...answer });
    // The place that became free may be filled.
    this.#hungry.set(placeKey({ tenantId, agent }), { tenantId, agent });
    await this.#loop();
  }

  /** Waits for a judge beside everything else, then has the ending settled with what it says. Never throws. */
  async #judge(ending: Answered, asked: Promise<Judgement>): Promise<void> {
    this.#judging.set(ending.rolloutId, ending);
    const judgement = await asked;
    this.#judging.delete(ending.rolloutId);
    this.#endings.push({ ...ending, judgement });
    await this.#loop();
  }

  /** The store refuses a transaction: its endings are tried singly, and one that is refused alone is given up. */
  #refuse(endings: readonly Ending[], thrown: unknown): void {
    const [first] = endings;
    if (endings.length > 1 || first === undefined) {
      this.#oneByOne = endings.length;
      return;
    }
    const error = `its ending could not be stored: ${messageOf(thrown)}`;
    log.error("settle.refused", { rolloutId: first.rolloutId, attempt: first.attempt, error });
    const { tenantId, rolloutId, attempt } = first;
    // A failure is a few words and can be stored. If not even that, the sweep ends the attempt when its lease runs out.
    this.#endings = this.#endings.filter((ending) => ending !== first);
    if (first.type === "answered") {
      this.#endings.unshift({ tenantId, rolloutId, attempt, type: "broken", error, reason: "agent_failed" });
    }
  }

  /** The attempts that are in hand here: running, or ended and not yet settled. */
  #held(): AttemptRef[] {
    const unsettled = [...this.#endings, ...this.#judging.values()].map(({ tenantId, rolloutId, attempt }) => ({
      tenantId,
      rolloutId,
      attempt,
    }));
    return [...[...this.#running.values()].map(({ ref }) => ref), ...unsettled];
  }

  #waitForStore(thrown: unknown): void {
    log.warn("round.failed", { error: messageOf(thrown), unsettled: this.#endings.length });
    this.#deps.callAt(this.#deps.now() + STORE_RETRY_MS);
  }
}

function placeKey({ tenantId, agent }: Place): string {
  return `${tenantId}/${agent}`;
}

/** Whether the store may take the same transaction a little later. */
function isPassing(thrown: unknown): boolean {
  return !(thrown instanceof FulgurError && (thrown.code === "ERR_CONFLICT" || thrown.code === "ERR_INVALID_REQUEST"));
}

/**
 * Waits for an attempt no longer than its time: an agent that ignores its signal is left behind. Its late calls bear
 * the token of an attempt that has ended.
 */
async function withTimeout(
  timeoutMs: number,
  abandoned: AbortSignal,
  work: (signal: AbortSignal) => Promise<AgentAnswer>,
): Promise<AgentAnswer | { readonly type: "abandoned" }> {
  const stop = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const ended = new Promise<AgentAnswer | { type: "abandoned" }>((resolve) => {
    timer = setTimeout(() => {
      resolve({ type: "broken", error: `the agent took longer than ${timeoutMs} ms`, reason: "timeout" });
    }, timeoutMs);
    abandoned.addEventListener("abort", () => resolve({ type: "abandoned" }), { once: true });
  });
  try {
    return await Promise.race([work(stop.signal), ended]);
  } catch (thrown) {
    return { type: "broken", error: messageOf(thrown), reason: "agent_failed" };
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}
