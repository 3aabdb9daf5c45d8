/** The worker threads of an engine, and the messages they understand. */

import { Worker } from "node:worker_threads";
import { type ErrorCode, FulgurError, messageOf } from "#shared/errors.ts";
import { stopWorker } from "../../stop-worker.ts";
import type { Pass } from "./decoder-graph.ts";
import type { Microbatch, MicrobatchScores } from "./microbatch.ts";
import type { ReplicaSetup, UpdateOptions } from "./replica.ts";

/** What a replica can be asked. */
export type ReplicaRequest =
  | { readonly type: "warm"; readonly pass: Pass }
  | { readonly type: "score" | "backward"; readonly microbatches: readonly Microbatch[] }
  | { readonly type: "reduce" }
  | { readonly type: "update"; readonly options: UpdateOptions };

/** What it answers: scores of each microbatch, sums of squares, or nothing. */
export type ReplicaResult = readonly MicrobatchScores[] | Float64Array | null;

/** An answer or the error that took its place. */
export type ReplicaReply =
  | { readonly ok: true; readonly result: ReplicaResult }
  | { readonly ok: false; readonly code: ErrorCode; readonly message: string };

/** The replicas of one engine. */
export class ReplicaPool {
  readonly #workers: readonly ReplicaThread[];

  constructor(setups: readonly ReplicaSetup[]) {
    this.#workers = setups.map((setup) => new ReplicaThread(setup));
  }

  /** Has each replica score its hand of microbatches; results are in the same order. */
  scores(
    type: "score" | "backward",
    hands: readonly (readonly Microbatch[])[],
  ): Promise<(readonly MicrobatchScores[])[]> {
    return Promise.all(
      this.#workers.map(async (worker, i) => {
        const microbatches = hands[i] ?? [];
        if (microbatches.length === 0) return [];
        const result = await worker.ask({ type, microbatches });
        return Array.isArray(result) ? (result as readonly MicrobatchScores[]) : unexpected(type);
      }),
    );
  }

  /** Sums of squares of each replica's owned parameters, after the replicas' gradients were added up. */
  reduce(): Promise<Float64Array[]> {
    return Promise.all(
      this.#workers.map(async (worker) => {
        const result = await worker.ask({ type: "reduce" });
        return result instanceof Float64Array ? result : unexpected("reduce");
      }),
    );
  }

  /** Moves all parameters. */
  async update(options: UpdateOptions): Promise<void> {
    await Promise.all(this.#workers.map((worker) => worker.ask({ type: "update", options })));
  }

  /** Opens the sessions of a pass ahead of its first use. */
  async warm(pass: Pass): Promise<void> {
    await Promise.all(this.#workers.map((worker) => worker.ask({ type: "warm", pass })));
  }

  /** Ends the threads. */
  async close(): Promise<void> {
    await Promise.all(this.#workers.map((worker) => worker.close()));
  }
}

class ReplicaThread {
  readonly #worker: Worker;
  #waiting: { resolve(result: ReplicaResult): void; reject(error: Error): void } | null = null;
  #dead: FulgurError | null = null;

  constructor(setup: ReplicaSetup) {
    this.#worker = new Worker(new URL("./replica-worker.ts", import.meta.url), { workerData: setup });
    this.#worker.on("message", (reply: ReplicaReply) => {
      const waiting = this.#waiting;
      this.#waiting = null;
      if (reply.ok) waiting?.resolve(reply.result);
      else waiting?.reject(new FulgurError(reply.code, reply.message));
    });
    this.#worker.on("error", (error) => this.#die(`An engine thread failed: ${messageOf(error)}`));
    this.#worker.on("exit", (code) => this.#die(`An engine thread has ended (exit code ${code}).`));
  }

  ask(request: ReplicaRequest): Promise<ReplicaResult> {
    if (this.#dead !== null) return Promise.reject(this.#dead);
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject };
      // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a thread has no origin
      this.#worker.postMessage(request);
    });
  }

  async close(): Promise<void> {
    await stopWorker(this.#worker);
  }

  #die(message: string): void {
    this.#dead ??= new FulgurError("ERR_INTERNAL", `${message} Make a new engine and load the last checkpoint.`);
    this.#waiting?.reject(this.#dead);
    this.#waiting = null;
  }
}

function unexpected(type: string): never {
  throw new FulgurError("ERR_INTERNAL", `An engine thread answered "${type}" with something else.`);
}
