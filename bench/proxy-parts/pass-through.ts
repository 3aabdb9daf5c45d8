import { Log, LogLevel, Miniflare } from "miniflare";
import { freePort } from "../../test/support/store.ts";
import { COMPATIBILITY_DATE } from "../../cli/parts/edge-host.ts";

export interface PassThrough {
  readonly url: string;
  stop(): Promise<void>;
}

/** The least that a Worker can do: each request goes on to the endpoint as it is, and its answer comes back as it is. */
const WORKER = `export default {
  fetch: (request, env) => env.INFERENCE.fetch(request.url, { method: "POST", headers: request.headers, body: request.body }),
};`;

/** A bare workerd in front of an endpoint, reached and reaching it in the way that the edge does. */
export async function startPassThrough(upstreamUrl: string): Promise<PassThrough> {
  const port = await freePort();
  const runtime = new Miniflare({
    host: "127.0.0.1",
    port: 0,
    cf: false,
    log: new Log(LogLevel.ERROR),
    logRequests: false,
    telemetry: { enabled: false },
    workers: [
      {
        config: {
          name: "pass-through",
          compatibilityDate: COMPATIBILITY_DATE,
          manifest: {
            mainModule: "worker.mjs",
            modulesRoot: import.meta.dirname,
            modules: { "worker.mjs": { type: "esm", contents: WORKER } },
          },
          env: { INFERENCE: { type: "external", address: new URL(upstreamUrl).host, http: {} } },
        },
        dev: { unsafeDirectSockets: [{ host: "127.0.0.1", port }] },
      },
    ],
  });
  await runtime.ready;
  return { url: `http://127.0.0.1:${port}`, stop: () => runtime.dispose() };
}
