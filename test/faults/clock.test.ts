import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { newId } from "#shared/ids.ts";
import { abandonBatch, claimGroups, markTrained } from "#shared/store/batches.ts";
import { createPolicy } from "#shared/store/policies.ts";
import { closeRollout, createRollouts, dropRollouts, leaseRollouts, sweepExpired } from "#shared/store/rollouts.ts";
import { transact } from "#shared/store/statement.ts";
import { mintToken, newSigningKey, type KeySet } from "#shared/tokens.ts";
import { edgeApp } from "../../edge/app.ts";
import { edgeConfig, type Env } from "../../edge/config.ts";
import { newEdge } from "../../edge/parts.ts";
import { newLedger, NOTHING_WRONG, type Ledger } from "../support/ledger.ts";
import { startMockInference, type MockInference } from "../support/mock-inference.ts";
import { seeded } from "../support/seed.ts";
import { startTestStore, type TestStore } from "../support/store.ts";

/**
 * Clocks that are an hour off, on one store: edges that serve, sign and verify by different clocks, and dispatchers, sweepers
 * and trainers that lease, end, claim and drop by them. Time may end a lease or a token too early or too late; it loses no
 * record and gives no rollout a second disposition.
 */

const HOUR_MS = 3_600_000;
const SKEWS = [-HOUR_MS, 0, HOUR_MS] as const;
const TENANT = "default";
const CALLS = 8;

const { below, pick } = seeded("clock");

let store: TestStore;
let inference: MockInference;
let keys: KeySet;
beforeAll(async () => {
  store = await startTestStore();
  inference = await startMockInference();
  keys = { keys: [await newSigningKey()] };
  const version = { tenantId: TENANT, kind: "base", artifact: "models/flight", sha256: "0".repeat(64) } as const;
  await transact(store.writer, createPolicy({ ...version, name: "flight" }, Date.now()));
});
afterAll(async () => {
  await inference.stop();
  await store.stop();
});

describe("edges whose clocks differ by an hour", () => {
  it("each serve what they signed, refuse what the others did, and lose no record", { timeout: 60_000 }, async () => {
    const ledger = newLedger();
    const edges = SKEWS.map((skewMs) => skewedEdge(skewMs));
    const grants = await Promise.all(edges.map((edge) => edge.grant()));
    for (const [at, edge] of edges.entries()) {
      for (const [from, { token }] of grants.entries()) {
        const nonces = Array.from({ length: CALLS }, (_, turn) => `clock-${at}-${from}-${turn}`);
        const statuses = await Promise.all(nonces.map((nonce) => edge.call(token, nonce, ledger)));
        // Of another hour: not valid yet, or no longer.
        expect({ at, from, statuses }).toEqual({ at, from, statuses: nonces.map(() => (at === from ? 200 : 401)) });
      }
    }
    expect(ledger.acknowledged.calls).toBe(SKEWS.length * CALLS);
    expect(await ledger.audit(store.db)).toEqual(NOTHING_WRONG);
  });
});

describe("leases, ends, claims and drops by clocks that differ by an hour", () => {
  it("end each rollout once, with one disposition", { timeout: 120_000 }, async () => {
    const ledger = newLedger();
    const { writer } = store;
    const runId = newId("run");
    const agent = "skewed";
    const ids = Array.from({ length: 40 }, () => newId("rollout"));
    const groups = ids.map((_, at) => `${runId}-${Math.floor(at / 2)}`);
    const rollouts = ids.map((id, at) => ({
      ...({ id, tenantId: TENANT, agent, mode: "train", runId, groupId: groups[at] ?? null, maxAttempts: 6 } as const),
    }));
    await writer.transact(createRollouts(rollouts, Date.now() - HOUR_MS));
    const leased: { rolloutId: string; attempt: number }[] = [];
    const batches: { readonly id: string; readonly step: number; claimed: readonly string[] }[] = [];
    let late = 0;

    /** What a part does by its own clock; those that another clock has made too late are refused, or change nothing. */
    const deeds: Record<string, (now: number) => Promise<void>> = {
      async lease(now) {
        const got = await transact(writer, leaseRollouts({ agent, limit: 2, now, leaseMs: 60_000 }));
        leased.push(...got.map(({ rollout }) => ({ rolloutId: rollout.id, attempt: rollout.attempt })));
      },
      async sweep(now) {
        await transact(writer, sweepExpired(now));
      },
      async finish(now) {
        const ref = leased[below(leased.length)];
        if (ref === undefined) return;
        const reward = below(100) / 100;
        const [closed = []] = await writer.transact(
          closeRollout({ ...ref, tenantId: TENANT }, { now, status: "finished", reward }),
        );
        if (closed.length === 1) ledger.finished(ref.rolloutId, reward);
        else late++;
      },
      async claim(now) {
        const batch = { id: newId("batch"), step: batches.length, claimed: [] as readonly string[] };
        const claim = { tenantId: TENANT, batchId: batch.id, runId, policy: "flight", step: batch.step, groups: 1 };
        batch.claimed = await transact(writer, claimGroups(claim, now));
        batches.push(batch);
      },
      async train(now) {
        const batch = batches[below(batches.length)];
        if (batch === undefined) return;
        const version = batch.step + 1;
        const artifact = { kind: "adapter", artifact: "none", sha256: version.toString(16).padStart(64, "0") } as const;
        const trained = { tenantId: TENANT, batchId: batch.id, version, parentVersion: 0, ...artifact, metrics: {} };
        await transact(writer, markTrained(trained, now));
      },
      async drop(now) {
        const id = ids[below(ids.length)] ?? "";
        if (below(4) === 0) await writer.transact(dropRollouts(TENANT, [id], { reason: "stale", now }));
      },
      async abandon() {
        const batch = batches[below(batches.length)];
        if (batch !== undefined && below(4) === 0) {
          await transact(writer, abandonBatch(TENANT, batch.id, { reason: "stale" }));
        }
      },
    };
    const names = Object.keys(deeds) as [string, ...string[]];
    for (let turn = 0; turn < 400; turn++) {
      const now = Date.now() + pick(SKEWS) + turn * 1000;
      await deeds[pick(names)]?.(now).catch((thrown: unknown) => {
        if (!(thrown instanceof Error && "code" in thrown && thrown.code === "ERR_CONFLICT")) throw thrown;
      });
      await ledger.look(store.db);
    }
    expect(await ledger.audit(store.db)).toEqual(NOTHING_WRONG);
    expect(ledger.acknowledged.finished).toBeGreaterThan(3);
    // Or no clock was ever in another's way.
    expect(late).toBeGreaterThan(3);
  });
});

interface SkewedEdge {
  /** A token of a new live rollout, by this edge's clock. */
  grant(): Promise<{ token: string }>;
  /** The status of the answer; noted in the ledger where it is whole. */
  call(token: string, nonce: string, ledger: Ledger): Promise<number>;
}

/** The edge's routes in this process, by a clock of their own; the writer is the one that all share. */
function skewedEdge(skewMs: number): SkewedEdge {
  const now = (): number => Date.now() + skewMs;
  // Only the bindings that these routes use.
  const env = {
    WRITER: { idFromName: () => "writer", get: () => store.writer },
    STORE_URL: store.url,
    STORE_WRITE_TOKEN: "not used here",
    STORE_READ_TOKEN: store.keys.readToken,
    INFERENCE_URL: inference.url,
    SIGNING_KEYS: JSON.stringify(keys),
    AGENTS: JSON.stringify({ flight: { policy: "flight" } }),
    PUBLIC_URL: "http://edge.invalid",
  } as unknown as Env;
  const app = edgeApp(newEdge(edgeConfig(env), { now, wakeDispatch: () => Promise.resolve() }));
  const context = {
    waitUntil: (work: Promise<unknown>) => void work.catch(() => undefined),
    passThroughOnException: () => undefined,
  } as unknown as Parameters<typeof app>[2];
  const ask = async (path: string, token: string, body: unknown): Promise<{ status: number; answer: unknown }> => {
    const request = new Request(`http://edge.invalid${path}`, {
      method: "POST",
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    const response = await app(request, env, context);
    return { status: response.status, answer: await response.json() };
  };
  return {
    async grant() {
      const { token } = await mintToken(keys, { tenantId: TENANT, scopes: ["admin"], now: now() });
      const { answer } = await ask("/v1/tokens", token, { agent: "flight", mode: "live" });
      return z.object({ token: z.string() }).parse(answer);
    },
    async call(token, nonce, ledger) {
      ledger.asked(nonce);
      const { status, answer } = await ask("/v1/chat/completions", token, {
        model: "any",
        messages: [{ role: "user", content: nonce }],
      });
      if (status === 200) ledger.call(z.object({ id: z.string() }).parse(answer).id, nonce);
      return status;
    },
  };
}
