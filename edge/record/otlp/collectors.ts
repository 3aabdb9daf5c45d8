import { messageOf } from "#shared/errors.ts";
import { logger } from "#shared/log.ts";
import { readCollectors } from "#shared/store/otlp-exports.ts";
import { edgeConfig, writerOf, type Env } from "../../config.ts";
import { shardDb } from "../../context.ts";
import { storeWriter } from "../writer-client.ts";
import { exportCalls } from "./export.ts";

const log = logger("otlp");

/** Every now and then: what was recorded in a shard since the last time goes to the collectors that its tenants have named. */
export async function exportTelemetry(env: Env, shard: number): Promise<void> {
  try {
    const db = shardDb(edgeConfig(env), env, shard);
    const deps = {
      db,
      writer: storeWriter(writerOf(env, shard)),
      fetch: (...request: Parameters<typeof fetch>) => fetch(...request),
      now: Date.now,
      variable(name: string) {
        const value: unknown = Reflect.get(env, name);
        return typeof value === "string" ? value : undefined;
      },
    };
    await Promise.all((await readCollectors(db)).map((collector) => exportCalls(deps, collector)));
  } catch (thrown) {
    // The store is away: the next time will do.
    log.warn("otlp.export_failed", { shard, error: messageOf(thrown) });
  }
}
