import { sql } from "drizzle-orm";
import { z } from "zod";
import type { StoreDb } from "#shared/store/connect.ts";

/** What clients were told is kept, to be held against what the store has. */
export interface Ledger {
  /** A call that is about to be made; `nonce` is its first message, sent once and never again. */
  asked(nonce: string): void;
  /** A call whose answer was seen whole, by the id in it. */
  call(id: string, nonce: string): void;
  /** A reward that was taken; `name` is given to no other. */
  reward(name: string): void;
  /** A span that was taken; `name` is given to no other. */
  span(name: string): void;
  /** A rollout that was finished, with the reward that it was said to have. */
  finished(rolloutId: string, reward: number | null): void;
  /** Rollouts whose batch was marked trained. */
  trained(batchId: string, rolloutIds: readonly string[]): void;
  readonly acknowledged: Readonly<Record<Kind, number>>;
  /** Notes the disposition of every rollout now: from one look to the next, none may be another. */
  look(db: StoreDb): Promise<void>;
  /** What became of all that was noted. To be asked when nothing waits in an outbox any more. */
  audit(db: StoreDb): Promise<Audit>;
}

export type Kind = "calls" | "rewards" | "spans" | "finished" | "trained";

/** Empty lists are the promise; what is in them is named for a person to look at. */
export interface Audit {
  /** Acknowledged, and not in the store, or there with another content. */
  readonly lost: readonly string[];
  /** Asked for once, stored or counted twice. */
  readonly duplicated: readonly string[];
  readonly twoDispositions: readonly string[];
}

export const NOTHING_WRONG: Audit = { lost: [], duplicated: [], twoDispositions: [] };

export function newLedger(): Ledger {
  const asked = new Set<string>();
  const calls = new Map<string, string>();
  const rewards = new Set<string>();
  const spans = new Set<string>();
  const finished = new Map<string, number | null>();
  const trainedIn = new Map<string, string>();
  const dispositions = new Map<string, string>();
  const changed: string[] = [];

  async function look(db: StoreDb): Promise<void> {
    const rows = dispositionRows.parse(
      await db.all(sql`select id, disposition, drop_reason as why from rollouts where disposition is not null`),
    );
    for (const { id, disposition, why } of rows) {
      const now = `${disposition}/${why ?? ""}`;
      const before = dispositions.get(id) ?? now;
      if (before !== now) changed.push(`${id} was ${before}, then ${now}`);
      dispositions.set(id, now);
    }
  }

  return {
    asked: (nonce) => void asked.add(nonce),
    call: (id, nonce) => void calls.set(id, nonce),
    reward: (name) => void rewards.add(name),
    span: (name) => void spans.add(name),
    finished: (rolloutId, reward) => void finished.set(rolloutId, reward),
    trained(batchId, rolloutIds) {
      for (const id of rolloutIds) {
        const before = trainedIn.get(id) ?? batchId;
        if (before !== batchId) changed.push(`${id} was trained in batch ${before}, then in ${batchId}`);
        trainedIn.set(id, batchId);
      }
    },
    get acknowledged() {
      return {
        calls: calls.size,
        rewards: rewards.size,
        spans: spans.size,
        finished: finished.size,
        trained: trainedIn.size,
      };
    },
    look,
    async audit(db) {
      await look(db);
      const stored = storedCalls.parse(
        await db.all(sql`select id, request ->> '$.messages[0].content' as nonce from calls`),
      );
      const nonceOf = new Map(stored.map(({ id, nonce }) => [id, nonce]));
      const rewardRows = names.parse(await db.all(sql`select name from rewards where source <> 'air'`));
      const spanRows = names.parse(await db.all(sql`select name from spans`));
      const ended = endedRows.parse(await db.all(sql`select id, status, reward from rollouts`));
      const endOf = new Map(ended.map((row) => [row.id, row]));
      const inTrained = entries.parse(
        await db.all(sql`select e.rollout_id as id, e.batch_id as batch, r.disposition from batch_entries e
          join batches b on b.id = e.batch_id and b.status = 'trained' join rollouts r on r.id = e.rollout_id`),
      );
      const batchesOf = Map.groupBy(inTrained, ({ id }) => id);
      // In one question: rollouts may still be calling.
      const [{ counted, kept } = { counted: 0, kept: 0 }] = countRows.parse(
        await db.all(sql`select (select coalesce(sum(calls), 0) from usage) as counted,
          (select count(*) from calls) as kept`),
      );
      const rewardNames = new Set(rewardRows.map(({ name }) => name));
      const spanNames = new Set(spanRows.map(({ name }) => name));
      return {
        lost: [
          ...[...calls].filter(([id, nonce]) => nonceOf.get(id) !== nonce).map(([id]) => `call ${id}`),
          ...[...rewards].filter((name) => !rewardNames.has(name)).map((name) => `reward ${name}`),
          ...[...spans].filter((name) => !spanNames.has(name)).map((name) => `span ${name}`),
          ...[...finished]
            .filter(([id, reward]) => endOf.get(id)?.status !== "finished" || endOf.get(id)?.reward !== reward)
            .map(([id]) => `the end of rollout ${id}`),
          ...[...trainedIn]
            .filter(([id, batch]) => !batchesOf.get(id)?.some((entry) => entry.batch === batch))
            .map(([id]) => `the training of rollout ${id}`),
        ],
        duplicated: [
          ...repeated(stored.flatMap(({ nonce }) => (nonce !== null && asked.has(nonce) ? [`call of ${nonce}`] : []))),
          ...repeated(rewardRows.flatMap(({ name }) => (rewards.has(name) ? [`reward ${name}`] : []))),
          ...repeated(spanRows.flatMap(({ name }) => (spans.has(name) ? [`span ${name}`] : []))),
          ...(counted === kept ? [] : [`usage counts ${counted} calls, ${kept} are stored`]),
        ],
        twoDispositions: [
          ...changed,
          ...[...dispositions].filter(([, what]) => !/^(trained\/|dropped\/.+)$/.test(what)).map(([id]) => id),
          ...repeated(inTrained.map(({ id }) => id)),
          // One that was dropped after its batch had claimed it stays in the batch, and is not trained.
          ...[...dispositions]
            .filter(([id, what]) => what === "trained/" && batchesOf.get(id)?.length !== 1)
            .map(([id]) => `${id} is trained, in no trained batch`),
          ...inTrained.filter(({ disposition }) => disposition === null).map(({ id }) => `${id} has none`),
        ],
      };
    },
  };
}

function repeated(things: readonly string[]): string[] {
  return [...Map.groupBy(things, (thing) => thing)].filter(([, same]) => same.length > 1).map(([thing]) => thing);
}

const dispositionRows = z.array(z.object({ id: z.string(), disposition: z.string(), why: z.string().nullable() }));
const storedCalls = z.array(z.object({ id: z.string(), nonce: z.string().nullable() }));
const names = z.array(z.object({ name: z.string() }));
const endedRows = z.array(z.object({ id: z.string(), status: z.string(), reward: z.number().nullable() }));
const entries = z.array(z.object({ id: z.string(), batch: z.string(), disposition: z.string().nullable() }));
const countRows = z.array(z.object({ counted: z.number(), kept: z.number() }));
