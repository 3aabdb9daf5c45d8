import { randomBytes } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { startTestEdge, type TestEdge } from "../support/edge.ts";
import { newLedger, NOTHING_WRONG } from "../support/ledger.ts";
import { startLoad, type Outcome } from "../support/load.ts";
import { setting } from "../support/seed.ts";
import { until } from "../support/until.ts";

/**
 * The store is away for a minute (FULGUR_FAULT_SECONDS) in three ways while live and train clients call on: every call is
 * answered, its record kept in the writer's outbox, or refused with 503 and Retry-After; nothing acknowledged is lost.
 * No supervisor is there to start it again: it would shorten what is tried here.
 */

const AWAY_MS = 1000 * setting("FULGUR_FAULT_SECONDS", 60, { min: 30, max: 600 });
/** A hanging store is noticed by time-outs of 5 s: the first calls wait for those of the agents, the rollout, the route and the commit. */
const LONGEST_CALL_MS = 4 * 5000 + 2000;
const PACE_MS = 100;

/** A way to be away; gives the way back. */
type Fault = (edge: TestEdge) => Promise<() => Promise<void>>;

const killed: Fault = async ({ store }) => {
  await store.kill();
  return () => store.restart();
};

const hung: Fault = async ({ store }) => {
  const { pid } = store;
  process.kill(pid, "SIGSTOP");
  return async () => void process.kill(pid, "SIGCONT");
};

/** Reads and /health answer, hardly a write goes through: whenever a held transaction dies, another holder waits for its turn. */
const wedged: Fault = async ({ store }) => {
  const over = new AbortController();
  const holders = Array.from({ length: 4 }, () => holdWrites(store.url, store.keys.writeToken, over.signal));
  await Promise.race(holders.map(({ held }) => held));
  return async () => {
    over.abort();
    await Promise.all(holders.map(({ ended }) => ended));
  };
};

describe("a store that is away", () => {
  // Started one after the other (they share esbuild's service), away at the same time.
  const edges: TestEdge[] = [];
  beforeAll(async () => {
    for (let count = 0; count < 3; count++) edges.push(await startTestEdge());
  });
  afterAll(async () => {
    for (const edge of edges) await edge.stop();
  });

  it.concurrent.for([
    { how: "was killed", fault: killed },
    { how: "hangs", fault: hung },
    { how: "takes no writes", fault: wedged },
  ])(
    "because it $how costs no acknowledged record, and every call is answered or told to come again",
    { timeout: AWAY_MS + 120_000 },
    async ({ how, fault }) => {
      const edge = edges.pop();
      if (edge === undefined) throw new Error("there are fewer edges than faults");
      const ledger = newLedger();
      const clients = (["live", "train"] as const).map((mode) =>
        startLoad({
          ...{ ledger, mode, url: () => edge.url, paceMs: PACE_MS, name: `${mode}-${randomBytes(4).toString("hex")}` },
          token: async () => (await edge.rollout(mode, { caps: { maxCalls: 10_000, maxTokens: 1_000_000 } })).token,
        }),
      );
      let heal: (() => Promise<void>) | undefined;
      try {
        const outcomes = (from = 0): Outcome[] =>
          clients.flatMap(({ outcomes: all }) => all.filter(({ startedAt }) => startedAt >= from));
        const answered = (mode: string, from: number): number =>
          outcomes(from).filter((outcome) => outcome.mode === mode && outcome.whole).length;
        await until("calls are answered", () => answered("live", 0) >= 5 && answered("train", 0) >= 5);

        heal = await fault(edge);
        const awayAt = performance.now();
        await pause(AWAY_MS); // how long it is away, which is what this is about
        const during = outcomes(awayAt);
        await heal();
        heal = undefined;
        const backAt = performance.now();
        await until(
          "both are answered again",
          () => answered("live", backAt) >= 5 && answered("train", backAt) >= 5,
          60_000,
        );
        await Promise.all(clients.map((client) => client.stop()));
        await until("the outbox is empty", async () => isDrained(edge.url), 60_000);

        const kinds = Map.groupBy(outcomes(), outcomeKind);
        console.log(
          `store ${how} for ${AWAY_MS / 1000} s: ${[...kinds].map(([kind, same]) => `${kind} ${same.length}`).join(", ")}; ` +
            `longest call ${Math.round(Math.max(...outcomes().map(({ ms }) => ms)))} ms`,
        );
        expect(
          [...kinds.keys()].filter((kind) => !/ (answered|refused with 503, Retry-After \d+)$/.test(kind)),
        ).toEqual([]);
        expect(Math.max(...outcomes().map(({ ms }) => ms))).toBeLessThan(LONGEST_CALL_MS);
        expect(during.filter(({ mode, whole }) => mode === "live" && whole).length).toBeGreaterThan(2);
        expect(ledger.acknowledged.calls).toBe(outcomes().filter(({ whole }) => whole).length);
        expect(await ledger.audit(edge.store.db)).toEqual(NOTHING_WRONG);
      } finally {
        await heal?.();
        await Promise.all(clients.map((client) => client.stop()));
        await edge.stop();
      }
    },
  );
});

function outcomeKind({ mode, whole, status, code, retryAfter, failure }: Outcome): string {
  if (whole) return `${mode} answered`;
  if (status === null) return `${mode} without an answer (${failure ?? "nothing said"})`;
  if (status === 503) return `${mode} refused with 503, Retry-After ${retryAfter ?? "missing"}`;
  return `${mode} answered ${status} ${code ?? "without a code"}`;
}

async function isDrained(url: string): Promise<boolean> {
  const text = await (await fetch(`${url}/metrics`)).text();
  return /fulgur_store_up 1\n/.test(text) && /fulgur_outbox_units 0/.test(text);
}

const batonSchema = z.object({
  baton: z.string().nullable(),
  results: z.array(z.object({ type: z.string() })),
});

/** Holds a writing transaction on a connection of its own; the server ends each after 5 s. */
function holdWrites(url: string, token: string, over: AbortSignal) {
  const held = Promise.withResolvers<void>();
  const ask = async (baton: string | null, sql: string): Promise<string | null> => {
    const response = await fetch(`${url}/v3/pipeline`, {
      method: "POST",
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: JSON.stringify({ baton, requests: [{ type: "execute", stmt: { sql, want_rows: false } }] }),
      signal: AbortSignal.timeout(20_000),
    });
    const answer = batonSchema.parse(await response.json());
    if (answer.results[0]?.type !== "ok") throw new Error(`the server refused ${sql}`);
    return answer.baton;
  };
  const hold = async (): Promise<void> => {
    while (!over.aborted) {
      try {
        let baton = await ask(null, "begin immediate");
        held.resolve();
        while (!over.aborted) {
          await pause(200, undefined, { signal: over }).catch(() => undefined);
          baton = await ask(baton, over.aborted ? "rollback" : "select 1");
        }
      } catch {
        // The server has ended it, or another has the lock.
        await pause(20);
      }
    }
  };
  return { held: held.promise, ended: hold() };
}
