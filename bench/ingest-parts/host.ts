import { join } from "node:path";
import { build } from "esbuild";
import { Log, LogLevel, Miniflare } from "miniflare";
import { COMPATIBILITY_DATE } from "../../cli/parts/edge-host.ts";
import { freePort, type TestStore } from "../../test/support/store.ts";

export interface IngestHost {
  readonly url: string;
  stop(): Promise<void>;
}

/** worker.ts and the writer's Durable Object in workerd, in front of a store, bound to it as the edge is. */
export async function startIngestHost(store: TestStore, stateDir: string): Promise<IngestHost> {
  const port = await freePort();
  const { outputFiles } = await build({
    entryPoints: [join(import.meta.dirname, "worker.ts")],
    bundle: true,
    write: false,
    format: "esm",
    target: "es2024",
    conditions: ["workerd", "worker", "browser"],
    external: ["cloudflare:*", "node:*"],
    logLevel: "error",
  });
  const runtime = new Miniflare({
    host: "127.0.0.1",
    port: 0,
    cf: false,
    log: new Log(LogLevel.ERROR),
    logRequests: false,
    telemetry: { enabled: false },
    resourcePersistencePath: stateDir,
    workers: [
      {
        config: {
          name: "ingest",
          compatibilityDate: COMPATIBILITY_DATE,
          compatibilityFlags: ["nodejs_compat"],
          manifest: {
            mainModule: "worker.mjs",
            modulesRoot: import.meta.dirname,
            modules: { "worker.mjs": { type: "esm", contents: outputFiles[0]?.text ?? "" } },
          },
          exports: { Writer: { type: "durable-object", storage: "sqlite" } },
          env: {
            WRITER: { type: "durable-object", worker: "ingest", exportName: "Writer" },
            STORE: { type: "external", address: new URL(store.url).host, http: {} },
            STORE_URL: { type: "text", value: store.url },
            STORE_WRITE_TOKEN: { type: "text", value: store.keys.writeToken },
          },
        },
        dev: { unsafeDirectSockets: [{ host: "127.0.0.1", port }] },
      },
    ],
  });
  await runtime.ready;
  return { url: `http://127.0.0.1:${port}`, stop: () => runtime.dispose() };
}
