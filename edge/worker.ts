import { startLogging } from "#shared/log.ts";
import { connectStore } from "#shared/store/connect.ts";
import { edgeApp, type EdgeFetch } from "./app.ts";
import { authenticator } from "./auth.ts";
import { edgeConfig, fetchBy, writerOf, type Env, type RolloutMessage } from "./config.ts";
import { counters } from "./counters.ts";
import { directory } from "./directory.ts";
import { onQueue, onScheduled, wakeDispatch } from "./dispatch/queue.ts";
import { errorResponse } from "./http-errors.ts";
import { keyAuth } from "./key-auth.ts";
import { admission } from "./proxy/admission.ts";
import { promptMemory } from "./proxy/prompt-memory.ts";
import { exportTelemetry } from "./record/otlp/collectors.ts";
import { providerMemory } from "./proxy/provider/memory.ts";
import { resolver } from "./proxy/resolve.ts";
import { sweepRetention } from "./record/retention.ts";
import { storeWriter } from "./record/writer-client.ts";
import { revocations } from "./revocations.ts";
import { sessions } from "./session.ts";

export { Dispatcher } from "./dispatch/dispatcher.ts";
export { Writer } from "./record/writer.ts";

/** The composition root: environment → configuration → app, once per isolate. */
const apps = new WeakMap<Env, EdgeFetch>();
let logging: Promise<void> | undefined;

function appOf(env: Env): EdgeFetch {
  const known = apps.get(env);
  if (known !== undefined) return known;
  logging ??= startLogging("info");
  const config = edgeConfig(env);
  const keys = keyAuth();
  const app = edgeApp({
    config,
    authenticate: authenticator(config.signingKeys, keys),
    keyAuth: keys,
    directory: directory(config),
    sessions: sessions(),
    revocations: revocations(),
    admission: admission(),
    resolver: resolver(),
    providerMemory: providerMemory(),
    prompts: promptMemory(),
    counters: counters(),
    wakeDispatch,
    now: Date.now,
  });
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
    await Promise.all([onScheduled(env), exportTelemetry(env), retention(env)]);
  },
} satisfies ExportedHandler<Env, RolloutMessage>;

/** Deletes what is older than its tenant keeps; while the store is away, the next time will do. */
async function retention(env: Env): Promise<void> {
  const { storeUrl: url, storeReadToken: token } = edgeConfig(env);
  const db = connectStore({ url, token, timeoutMs: 5000, fetch: fetchBy(env.STORE) });
  const writer = storeWriter(writerOf(env));
  await sweepRetention({ db, writer, now: Date.now() }).catch(() => undefined);
}
