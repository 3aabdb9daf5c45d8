/** The HTTP side of the loader thread: asks for a version's decode graph by name and folder. */

import { Worker } from "node:worker_threads";
import { FulgurError } from "#shared/errors.ts";
import type { Architecture } from "../model/architecture.ts";
import type { ServePrecision } from "./config.ts";
import type { LoadCommand, LoadEvent } from "./protocol.ts";
import { stopWorker } from "../stop-worker.ts";

/** A version ready to be run. */
export interface BuiltVersion {
  readonly graph: Uint8Array;
  /** sha256 over the artifact's files; empty for the base model. */
  readonly digest: string;
}

/** How versions are built. */
export interface LoaderOptions {
  readonly maxContextTokens: number;
  readonly precision: ServePrecision;
}

/** The loader thread, once it has read the base model. */
export interface Loader {
  readonly architecture: Architecture;
  /** Longest sequence, prompt and answer together. */
  readonly contextTokens: number;
  /**
   * Proves and builds a version; builds run one after the other.
   * @param path folder of the artifact, null for the base model
   * @throws FulgurError ERR_CHECKPOINT when the artifact is not what it should be
   */
  build(version: string, path: string | null): Promise<BuiltVersion>;
  close(): Promise<void>;
}

/**
 * Starts the loader thread and waits until the base model is read.
 * @throws FulgurError ERR_MODEL when the model folder cannot be used
 */
export async function startLoader(modelDir: string, { maxContextTokens, precision }: LoaderOptions): Promise<Loader> {
  const worker = new Worker(new URL("./loader-worker.ts", import.meta.url), {
    workerData: { modelDir, maxContextTokens, precision },
  });
  const waiting = new Map<number, PromiseWithResolvers<BuiltVersion>>();
  const ready = Promise.withResolvers<{ architecture: Architecture; contextTokens: number }>();
  let serial = 0;
  const failAll = (error: unknown): void => {
    ready.reject(error);
    for (const { reject } of waiting.values()) reject(error);
    waiting.clear();
  };
  worker.on("error", failAll);
  worker.on("exit", (code) => failAll(new FulgurError("ERR_INTERNAL", `The loader thread ended with code ${code}.`)));
  worker.on("message", (event: LoadEvent) => {
    if (event.type === "ready") {
      ready.resolve(event);
      return;
    }
    if (event.type === "failed" && event.serial === null) {
      ready.reject(new FulgurError(event.code, event.message));
      return;
    }
    const request = event.serial === null ? undefined : waiting.get(event.serial);
    if (request === undefined || event.serial === null) return;
    waiting.delete(event.serial);
    if (event.type === "built") request.resolve(event);
    else request.reject(new FulgurError(event.code, event.message));
  });
  try {
    const { architecture, contextTokens } = await ready.promise;
    return {
      architecture,
      contextTokens,
      build(version, path) {
        const request = Promise.withResolvers<BuiltVersion>();
        const command: LoadCommand = { type: "load", serial: serial++, version, path };
        waiting.set(command.serial, request);
        worker.postMessage(command, []);
        return request.promise;
      },
      close: () => stopWorker(worker),
    };
  } catch (error) {
    await worker.terminate();
    throw error;
  }
}
