import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import type { Row, StoreWriter, WriterStatus } from "#shared/store/statement.ts";
import { FulgurError, type ErrorCode } from "#shared/errors.ts";
import { withBytes, withoutBytes } from "./bytes-in-json.ts";
import { convertV4MiniflareOptions, Log, LogLevel, Miniflare } from "miniflare";

export interface TestWriter {
  readonly url: string;
  /** The writer's RPC, called from Node. */
  readonly writer: StoreWriter;
  /** The workerd process, for a crash. */
  readonly workerdPid: number | undefined;
  readonly stop: () => Promise<void>;
}

export interface TestWriterOptions {
  readonly storeUrl: string;
  readonly storeToken: string;
  /** Where the Durable Object's own SQLite lies; in memory where absent. */
  readonly persistDir?: string;
}

/** The writer's Durable Object in workerd behind test/edge/record/writer-worker.ts. */
export async function startTestWriter(options: TestWriterOptions): Promise<TestWriter> {
  const bundle = await build({
    entryPoints: [fileURLToPath(new URL("../edge/record/writer-worker.ts", import.meta.url))],
    bundle: true,
    write: false,
    format: "esm",
    target: "es2024",
    conditions: ["workerd", "worker", "browser"],
    external: ["cloudflare:workers", "node:*"],
    logLevel: "error",
  });
  const miniflare = new Miniflare(
    convertV4MiniflareOptions({
      host: "127.0.0.1",
      port: 0,
      cf: false,
      log: new Log(LogLevel.ERROR),
      ...(options.persistDir === undefined ? {} : { resourcePersistencePath: options.persistDir }),
      workers: [
        {
          name: "writer",
          modules: [{ type: "ESModule", path: "worker.js", contents: bundle.outputFiles[0]?.text ?? "" }],
          compatibilityDate: "2026-10-01",
          compatibilityFlags: ["nodejs_compat"],
          bindings: { STORE_URL: options.storeUrl, STORE_WRITE_TOKEN: options.storeToken },
          durableObjects: {
            WRITER: { className: "Writer", useSQLite: true },
            OUTBOX: { className: "OutboxHost", useSQLite: true },
          },
        },
      ],
    }),
  );
  const url = await miniflare.ready;
  return {
    writer: httpWriter(url.origin),
    url: url.origin,
    workerdPid: await childOf(process.pid, "workerd"),
    stop: () => miniflare.dispose(),
  };
}

/** The routes of writer-worker.ts as a writer again. */
function httpWriter(url: string): StoreWriter {
  const ask = async (route: string, body?: unknown): Promise<unknown> => {
    const response = await fetch(`${url}/${route}`, {
      method: "POST",
      ...(body === undefined ? {} : { body: JSON.stringify(body, withoutBytes) }),
    });
    const answer: unknown = JSON.parse(await response.text(), withBytes);
    if (response.ok) return answer;
    const { code, message } = answer as { code: ErrorCode; message: string };
    throw new FulgurError(code, message);
  };
  // The worker answers exactly what the writer gave.
  return {
    append: async (units) => void (await ask("append", units)),
    transact: async (statements) => (await ask("transact", statements)) as Row[][],
    status: async () => (await ask("status")) as WriterStatus,
  };
}

/** A child process by name, from Linux' /proc. */
async function childOf(parent: number, name: string): Promise<number | undefined> {
  try {
    const children = (await readFile(`/proc/${parent}/task/${parent}/children`, "utf8")).trim().split(" ").map(Number);
    for (const child of children.toReversed()) {
      if ((await readFile(`/proc/${child}/comm`, "utf8")).trim().startsWith(name)) return child;
    }
  } catch {
    // another platform
  }
  return undefined;
}
