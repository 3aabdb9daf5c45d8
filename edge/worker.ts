import { startLogging } from "#shared/log.ts";
import { edgeApp, type EdgeFetch } from "./app.ts";
import { edgeConfig, writerOf, type Env, type RolloutMessage } from "./config.ts";
import { shardDb } from "./context.ts";
import { onQueue, onScheduled } from "./dispatch/queue.ts";
import { errorResponse } from "./http-errors.ts";
import { newEdge } from "./parts.ts";
import { exportTelemetry } from "./record/otlp/collectors.ts";
import { sweepRetention } from "./record/retention.ts";
import { storeWriter } from "./record/writer-client.ts";

export { Dispatcher } from "./dispatch/dispatcher.ts";
export { Writer } from "./record/writer.ts";

/** The composition root: environment → configuration → app, once per isolate. */
const apps = new WeakMap<Env, EdgeFetch>();
let logging: Promise<void> | undefined;

function appOf(env: Env): EdgeFetch {
  const known = apps.get(env);
  if (known !== undefined) return known;
  logging ??= startLogging("info");
  const app = edgeApp(newEdge(edgeConfig(env)));
  apps.set(env, app);
  return app;
}

export default {
  async fetch(request, env, context) {
    let app: EdgeFetch;
    try {
      app = appOf(env);
    } catch (thrown) {
      return errorResponse(thrown);
    }
    return app(request, env, context);
  },
  queue: onQueue,
  async scheduled(_controller, env) {
    const { shards } = edgeConfig(env);
    await Promise.all([
      onScheduled(env, shards),
      ...shards.flatMap(({ index }) => [exportTelemetry(env, index), retention(env, index)]),
    ]);
  },
} satisfies ExportedHandler<Env, RolloutMessage>;

/** Deletes what is older than its tenant keeps; while the shard is away, the next time will do. */
async function retention(env: Env, shard: number): Promise<void> {
  const db = shardDb(edgeConfig(env), env, shard);
  const writer = storeWriter(writerOf(env, shard));
  await sweepRetention({ db, writer, now: Date.now() }).catch(() => undefined);
}
