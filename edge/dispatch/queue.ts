import type { Env, RolloutMessage } from "../config.ts";

/** A message is at most 128 KB; ids are about 35 bytes each. */
const IDS_PER_MESSAGE = 500;

/**
 * Tells the dispatcher through the queue that rollouts were queued. The store is the truth: a message that is lost,
 * late or delivered twice does no harm, because what is leased is what the store says is queued.
 */
export async function wakeDispatch(env: Pick<Env, "ROLLOUTS">, rolloutIds: readonly string[]): Promise<void> {
  const messages: { body: RolloutMessage }[] = [];
  for (let from = 0; from < rolloutIds.length; from += IDS_PER_MESSAGE) {
    messages.push({ body: { rollout_ids: rolloutIds.slice(from, from + IDS_PER_MESSAGE) } });
  }
  if (messages.length > 0) await env.ROLLOUTS.sendBatch(messages);
}

/**
 * The queue's consumer. It only wakes and returns: batches are delivered one after another, so one that waited for its
 * rollouts to end would hold up all the others. Where waking fails, the queue delivers the batch again.
 */
export async function onQueue(batch: MessageBatch<RolloutMessage>, env: Pick<Env, "DISPATCHER">): Promise<void> {
  await dispatcherOf(env).wake();
  batch.ackAll();
}

/** Every now and then: wakes the dispatcher, which sweeps expired leases and takes what nobody woke it for. */
export async function onScheduled(env: Pick<Env, "DISPATCHER">): Promise<void> {
  await dispatcherOf(env).wake();
}

/** The one dispatcher. */
function dispatcherOf(env: Pick<Env, "DISPATCHER">) {
  return env.DISPATCHER.get(env.DISPATCHER.idFromName("dispatcher"));
}
