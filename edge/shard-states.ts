import { writerOf, type EdgeConfig, type Env } from "./config.ts";
import { storeWriter } from "./record/writer-client.ts";

export interface ShardState {
  readonly shard: number;
  /** Whether writes reach its libSQL. */
  readonly up: boolean;
  /** Units that wait for it. */
  readonly outbox: number;
}

/** How each shard's writer stands; one that does not answer is down. */
export function shardStates(env: Env, { shards }: Pick<EdgeConfig, "shards">): Promise<ShardState[]> {
  return Promise.all(
    shards.map(async ({ index: shard }) => {
      try {
        const { storeUp: up, outbox } = await storeWriter(writerOf(env, shard)).status();
        return { shard, up, outbox };
      } catch {
        return { shard, up: false, outbox: 0 };
      }
    }),
  );
}
