import { messageOf } from "#shared/errors.ts";
import { logger } from "#shared/log.ts";
import { connectStore } from "#shared/store/connect.ts";
import { readCollectors } from "#shared/store/otlp-exports.ts";
import { edgeConfig, fetchBy, writerOf, type Env } from "../../config.ts";
import { storeWriter } from "../writer-client.ts";
import { exportCalls } from "./export.ts";

const log = logger("otlp");

/** Every now and then: what was recorded since the last time goes to the collectors that tenants have named. */
export async function exportTelemetry(env: Env): Promise<void> {
  try {
    const { storeUrl: url, storeReadToken: token } = edgeConfig(env);
    const db = connectStore({ url, token, timeoutMs: 5000, fetch: fetchBy(env.STORE) });
    const deps = {
      db,
      writer: storeWriter(writerOf(env)),
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
    log.warn("otlp.export_failed", { error: messageOf(thrown) });
  }
}
