import { sql } from "drizzle-orm";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { newId } from "#shared/ids.ts";
import { recordCall } from "#shared/store/calls.ts";
import { recordMetrics } from "#shared/store/runs.ts";
import type { Statement } from "#shared/store/statement.ts";
import { startTestEdge, type TestEdge } from "../support/edge.ts";
import { newLedger, NOTHING_WRONG } from "../support/ledger.ts";
import { seeded } from "../support/seed.ts";

/**
 * What at-least-once delivery does: everything a client sends about a rollout (calls, rewards, spans, ends) comes up to
 * three times and in any order. Each is kept once, and an end is the first one.
 */

const ROLLOUTS = 12;
const AT_ONCE = 16;

const { below, shuffled } = seeded("order");

let edge: TestEdge;
beforeAll(async () => {
  edge = await startTestEdge();
});
afterAll(() => edge.stop());

/** Something that is sent so many times, and what is to be noted when it was taken. */
interface Delivery {
  readonly path: string;
  readonly token: string;
  readonly body: unknown;
  readonly taken: (answer: unknown) => void;
}

const createdSchema = z.object({ id: z.string(), created: z.boolean() });
const endSchema = z.object({ id: z.string(), status: z.string(), reward: z.number().nullable() });

describe("deliveries that come again and in another order", () => {
  it("are each kept once, and a rollout ends as it was told first", { timeout: 60_000 }, async () => {
    const ledger = newLedger();
    const rollouts = await Promise.all(Array.from({ length: ROLLOUTS }, () => edge.rollout("train")));
    /** By reward, the ids that its deliveries were answered with; by rollout, the rewards that its ends were. */
    const ids = new Map<string, Set<string>>();
    const ends = new Map<string, Set<number | null>>();
    let answered = 0;
    const deliveries = rollouts.flatMap(({ id, token }, at) => {
      const nonce = `order-${at}`;
      ledger.asked(nonce);
      const reward: Delivery = {
        ...{ path: "/v1/rewards", token },
        body: { source: "feedback", name: nonce, value: at },
        taken(answer) {
          ids.set(nonce, (ids.get(nonce) ?? new Set()).add(createdSchema.parse(answer).id));
          ledger.reward(nonce);
        },
      };
      const span: Delivery = {
        ...{ path: "/v1/traces", token, body: spanOf(nonce, at) },
        taken: () => ledger.span(nonce),
      };
      // Three ends that say different things: only one of them can be what the rollout came to.
      const finishes = [0.25, 0.5, 0.75].map((value): Delivery => ({
        ...{ path: `/v1/rollouts/${id}/finish`, token, body: { result: `${value}`, reward: value } },
        taken(answer) {
          const { reward: told } = endSchema.parse(answer);
          ends.set(id, (ends.get(id) ?? new Set()).add(told));
          ledger.finished(id, told);
        },
      }));
      const call: Delivery = {
        ...{ path: "/v1/chat/completions", token },
        body: { model: "any", messages: [{ role: "user", content: nonce }] },
        taken(answer) {
          answered++;
          ledger.call(z.object({ id: z.string() }).parse(answer).id, nonce);
        },
      };
      return [
        call, // once: two requests are two calls, and one request is never repeated by the edge
        ...[reward, span, ...finishes].flatMap((delivery) => Array.from({ length: 1 + below(3) }, () => delivery)),
      ];
    });
    const left = shuffled(deliveries);
    const refusals: unknown[] = [];
    const send = async (): Promise<void> => {
      for (let next = left.shift(); next !== undefined; next = left.shift()) {
        const response = await edge.post(next.path, next.token, next.body);
        const answer: unknown = await response.json();
        if (response.ok) next.taken(answer);
        // A call may come after its rollout's end, and is told so.
        else if (!(next.path === "/v1/chat/completions" && response.status === 403)) refusals.push([next.path, answer]);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, send));

    expect(refusals).toEqual([]);
    expect([...ids.values()].map(({ size }) => size)).toEqual(rollouts.map(() => 1));
    expect([...ends.values()].map(({ size }) => size)).toEqual(rollouts.map(() => 1));
    expect(ledger.acknowledged).toMatchObject({
      rewards: ROLLOUTS,
      spans: ROLLOUTS,
      finished: ROLLOUTS,
      calls: answered,
    });
    console.log(`order: ${deliveries.length} deliveries for ${ROLLOUTS} rollouts, ${answered} calls answered`);
    expect(await ledger.audit(edge.store.db)).toEqual(NOTHING_WRONG);
    const [{ terminals } = { terminals: -1 }] = z
      .array(z.object({ terminals: z.number() }))
      .parse(await edge.store.db.all(sql`select count(*) as terminals from rewards where source = 'terminal'`));
    expect(terminals).toBe(ROLLOUTS);
  });

  it(
    "of a batch train each rollout once, whichever of claim, training and dropping comes again",
    { timeout: 60_000 },
    async () => {
      const ledger = newLedger();
      const runId = newId("run");
      await edge.admin.putRun({ id: runId, policy: "flight", agent: "flight", config: {} });
      const groups = await Promise.all(Array.from({ length: 6 }, () => finishedGroup(runId)));
      for (const step of groups.keys()) {
        const batchId = newId("batch");
        const claims = await Promise.allSettled(
          // Two trainers that both think it is theirs.
          [batchId, batchId, newId("batch")].map((id) =>
            edge.admin.claimBatch({ batchId: id, runId, policy: "flight", step, groups: 1 }),
          ),
        );
        const won = claims.flatMap((claim) => (claim.status === "fulfilled" ? [claim.value] : []));
        const owners = new Set(won.map((claim) => claim.batchId));
        expect(owners.size).toBe(1);
        const [owner = ""] = owners;
        const claimed = won.reduce<readonly string[]>(
          (most, { rolloutIds }) => (rolloutIds.length > most.length ? rolloutIds : most),
          [],
        );
        const version = step + 1;
        const trained = (): Promise<unknown> =>
          edge.admin.markTrained(owner, {
            ...{ version, parentVersion: step, kind: "adapter", artifact: `none/${version}` },
            ...{ sha256: version.toString(16).padStart(64, "0"), metrics: {} },
          });
        const drop = (): Promise<unknown> => edge.admin.dropRollouts(claimed, "stale");
        const abandon = (): Promise<unknown> => edge.admin.abandonBatch(owner, "stale");
        await Promise.allSettled(
          shuffled([trained, trained, drop, abandon, abandon, trained]).map((change) => change()),
        );
        await ledger.look(edge.store.db);
        await Promise.allSettled(shuffled([trained, drop, abandon]).map((change) => change()));
      }
      const dispositions = z
        .array(z.object({ disposition: z.string() }))
        .parse(await edge.store.db.all(sql`select disposition from rollouts where run_id = ${runId}`));
      expect(dispositions).toHaveLength(groups.flat().length);
      expect(await ledger.audit(edge.store.db)).toEqual(NOTHING_WRONG);
    },
  );

  it("of the writer's own units are stored and counted once", async () => {
    const call = (id: string): Statement[] =>
      recordCall({
        ...{
          id,
          tenantId: "default",
          rolloutId: "ro_appended",
          attempt: 1,
          mode: "live",
          dialect: "chat",
          modelAsked: "m",
        },
        ...{ request: "{}", response: null, promptTokens: 1, completionTokens: 1, httpStatus: 200, trainable: false },
        ...{ latencyMs: 1, createdAt: Date.now() },
      });
    const callIds = Array.from({ length: 40 }, () => newId("call"));
    const units = callIds.map(call);
    // As after an answer that was lost: the whole group again, in other company.
    for (let time = 0; time < 3; time++) await edge.store.writer.append(shuffled([...units, ...units]));
    const [row] = z.array(z.object({ stored: z.number(), counted: z.number() })).parse(
      await edge.store.db.all(sql`select (select count(*) from calls where rollout_id = 'ro_appended') as stored,
        (select sum(calls) from usage where model = 'm') as counted`),
    );
    expect(row).toEqual({ stored: callIds.length, counted: callIds.length });
    // The last of several points under one name wins, and there is one.
    const point = (value: number): Statement[] =>
      recordMetrics([{ runId: "ru_order", tenantId: "default", step: 1, name: "n", value, createdAt: 1 }]);
    await edge.store.writer.append([point(1), point(2), point(1), point(3)]);
    expect(await edge.store.db.all(sql`select value from metrics where run_id = 'ru_order'`)).toEqual([{ value: 3 }]);
  });
});

/** Two finished train rollouts of one group, trainable calls and all. */
async function finishedGroup(runId: string): Promise<string[]> {
  const groupId = newId("group");
  const ids = [newId("rollout"), newId("rollout")];
  const now = Date.now();
  await edge.store.writer.append(
    ids.map((id): Statement[] => [
      {
        sql: `insert into rollouts (id, tenant_id, run_id, group_id, agent, mode, status, attempt, max_attempts, reward, created_at)
              values (?, 'default', ?, ?, 'flight', 'train', 'finished', 1, 1, 0.5, ?)`,
        args: [id, runId, groupId, now],
      },
    ]),
  );
  return ids;
}

function spanOf(name: string, at: number): unknown {
  const span = {
    ...{ traceId: at.toString(16).padStart(32, "a"), spanId: at.toString(16).padStart(16, "b"), name, kind: 1 },
    ...{ startTimeUnixNano: "1795000000000000000", endTimeUnixNano: "1795000000000000000", attributes: [] },
  };
  return { resourceSpans: [{ resource: { attributes: [] }, scopeSpans: [{ scope: {}, spans: [span] }] }] };
}
