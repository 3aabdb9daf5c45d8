import { startLogging } from "#shared/log.ts";
import { edgeApp, type EdgeFetch } from "./app.ts";
import { authenticator } from "./auth.ts";
import { edgeConfig, type Env, type RolloutMessage } from "./config.ts";
import { counters } from "./counters.ts";
import { onQueue, onScheduled, wakeDispatch } from "./dispatch/queue.ts";
import { errorResponse } from "./http-errors.ts";
import { admission } from "./proxy/admission.ts";
import { resolver } from "./proxy/resolve.ts";
import { revocations } from "./revocations.ts";

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
  const app = edgeApp({
    config,
    authenticate: authenticator(config.signingKeys),
    revocations: revocations(),
    admission: admission(),
    resolver: resolver(),
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
  scheduled: (_controller, env) => onScheduled(env),
} satisfies ExportedHandler<Env, RolloutMessage>;
