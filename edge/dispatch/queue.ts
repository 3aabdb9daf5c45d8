import type { Env, RolloutMessage } from "../config.ts";
import { objectName, type StoreShard } from "../shards.ts";

/** A message is at most 128 KB; ids are about 35 bytes each. */
const IDS_PER_MESSAGE = 500;

export interface Queued {
  /** Where they are. */
  readonly shard: number;
  readonly rolloutIds: readonly string[];
}

/**
 * Tells a shard's dispatcher through the queue that rollouts were queued. The store is the truth: a message that is lost,
 * late or delivered twice does no harm, because what is leased is what the store says is queued.
 */
export async function wakeDispatch(env: Pick<Env, "ROLLOUTS">, { shard, rolloutIds }: Queued): Promise<void> {
  const messages: { body: RolloutMessage }[] = [];
  for (let from = 0; from < rolloutIds.length; from += IDS_PER_MESSAGE) {
    messages.push({ body: { rollout_ids: rolloutIds.slice(from, from + IDS_PER_MESSAGE), shard } });
  }
  if (messages.length > 0) await env.ROLLOUTS.sendBatch(messages);
}

/**
 * The queue's consumer. It only wakes and returns: batches are delivered one after another, so one that waited for its
 * rollouts to end would hold up all the others. Where waking fails, the queue delivers the batch again.
 */
export async function onQueue(batch: MessageBatch<RolloutMessage>, env: Pick<Env, "DISPATCHER">): Promise<void> {
  await wakeAll(env, new Set(batch.messages.map(({ body }) => body.shard ?? 0)));
  batch.ackAll();
}

/** Every now and then: wakes the dispatchers, which sweep expired leases and take what nobody woke them for. */
export async function onScheduled(env: Pick<Env, "DISPATCHER">, shards: readonly StoreShard[]): Promise<void> {
  await wakeAll(
    env,
    shards.map(({ index }) => index),
  );
}

/** @throws what waking one of them threw, when all were asked */
async function wakeAll({ DISPATCHER }: Pick<Env, "DISPATCHER">, shards: Iterable<number>): Promise<void> {
  const woken = await Promise.allSettled(
    Array.from(shards, (shard) => DISPATCHER.get(DISPATCHER.idFromName(objectName("dispatcher", shard))).wake()),
  );
  for (const outcome of woken) if (outcome.status === "rejected") throw outcome.reason;
}
