/** The decode threads as one: versions are loaded into all of them, each sequence goes to one. */

import { Worker } from "node:worker_threads";
import { FulgurError } from "#shared/errors.ts";
import type { Architecture } from "../model/architecture.ts";
import type { DecoderOptions, SequenceRequest } from "./decoder.ts";
import { type DecodeCommand, type DecodeEvent, movable, type TokenReport } from "./protocol.ts";

/** What a sequence's owner is told, in order; after `finish` or `fail` nothing more comes. */
export interface SequenceListener {
  tokens(report: TokenReport): void;
  fail(error: FulgurError): void;
}

/** A sequence on its way. */
export interface RunningSequence {
  /** The thread that it went to; a later turn finds its prefix there. */
  readonly thread: number;
  /** Frees its row; the listener hears nothing more. */
  cancel(): void;
}

/** How a sequence is to be run. */
export interface SubmitOptions {
  readonly report: "each" | "whole";
  /** The thread of an earlier turn, taken unless it is much busier than another. */
  readonly preferredThread?: number | undefined;
}

interface Thread {
  readonly worker: Worker;
  readonly listeners: Map<number, SequenceListener>;
  /** By version: who waits for it to be loaded or unloaded. */
  readonly changes: Map<string, PromiseWithResolvers<void>>;
}

/** How many more sequences a thread may have than the idlest one and still keep its earlier rollouts. */
const AFFINITY_SLACK = 4;

/** A fixed number of decode threads. */
export class DecodePool {
  readonly #threads: readonly Thread[];
  readonly #fatal: (error: Error) => void;
  #nextId = 1;
  #isClosing = false;

  /**
   * @param threads how many to start
   * @param fatal called when a thread dies: its sequences are lost and the process should be started again
   */
  constructor(threads: number, fatal: (error: Error) => void) {
    this.#fatal = fatal;
    this.#threads = Array.from({ length: threads }, () => this.#start());
  }

  /** Sequences that were submitted and are not finished. */
  get sequences(): number {
    return this.#threads.reduce((sum, { listeners }) => sum + listeners.size, 0);
  }

  /**
   * Loads a version into every thread.
   * @param graph an encoded decode graph; given away
   * @throws FulgurError ERR_MODEL when the runtime refuses the graph; it is then loaded nowhere
   */
  async load(version: string, graph: Uint8Array, architecture: Architecture, options: DecoderOptions): Promise<void> {
    const results = await Promise.allSettled(
      this.#threads.map((thread, t) =>
        this.#change(
          thread,
          { type: "load", version, graph, architecture, options },
          // Every thread but the last gets a copy.
          t === this.#threads.length - 1 ? movable(graph) : [],
        ),
      ),
    );
    const failed = results.find((result) => result.status === "rejected");
    if (failed === undefined) return;
    await this.unload(version);
    throw failed.reason;
  }

  /** Frees a version's sessions; the caller knows that none of its sequences runs. */
  async unload(version: string): Promise<void> {
    await Promise.all(this.#threads.map((thread) => this.#change(thread, { type: "unload", version })));
  }

  /** Starts sampling a sequence; its id is given here. */
  submit(
    version: string,
    request: Omit<SequenceRequest, "id">,
    listener: SequenceListener,
    { report, preferredThread }: SubmitOptions,
  ): RunningSequence {
    const thread = this.#choose(preferredThread);
    const id = this.#nextId++;
    const chosen = this.#at(thread);
    chosen.listeners.set(id, listener);
    post(chosen, { type: "submit", version, request: { ...request, id }, report });
    return {
      thread,
      cancel: () => {
        if (chosen.listeners.delete(id)) post(chosen, { type: "cancel", id });
      },
    };
  }

  /** Ends the threads at once. */
  async close(): Promise<void> {
    this.#isClosing = true;
    await Promise.all(this.#threads.map(({ worker }) => worker.terminate()));
  }

  #choose(preferred: number | undefined): number {
    let idlest = 0;
    for (let t = 1; t < this.#threads.length; t++) {
      if (this.#at(t).listeners.size < this.#at(idlest).listeners.size) idlest = t;
    }
    if (preferred === undefined || preferred >= this.#threads.length) return idlest;
    const excess = this.#at(preferred).listeners.size - this.#at(idlest).listeners.size;
    return excess <= AFFINITY_SLACK ? preferred : idlest;
  }

  #at(index: number): Thread {
    const thread = this.#threads[index];
    if (thread === undefined) throw new RangeError(`No decode thread ${index}`);
    return thread;
  }

  #change(
    thread: Thread,
    command: DecodeCommand & { type: "load" | "unload" },
    moved: readonly ArrayBuffer[] = [],
  ): Promise<void> {
    const change = Promise.withResolvers<void>();
    thread.changes.set(command.version, change);
    post(thread, command, moved);
    return change.promise;
  }

  #start(): Thread {
    const worker = new Worker(new URL("./decode-worker.ts", import.meta.url));
    const thread: Thread = { worker, listeners: new Map(), changes: new Map() };
    const die = (error: Error): void => {
      if (this.#isClosing) return;
      const failure = new FulgurError("ERR_INTERNAL", `A decode thread died: ${error.message}`, { cause: error });
      for (const listener of thread.listeners.values()) listener.fail(failure);
      for (const change of thread.changes.values()) change.reject(failure);
      thread.listeners.clear();
      thread.changes.clear();
      this.#fatal(failure);
    };
    worker.on("error", die);
    worker.on("exit", (code) => die(new Error(`it ended with code ${code}`)));
    worker.on("message", (event: DecodeEvent) => hear(thread, event));
    return thread;
  }
}

function post({ worker }: Thread, command: DecodeCommand, moved: readonly ArrayBuffer[] = []): void {
  worker.postMessage(command, [...moved]);
}

function hear(thread: Thread, event: DecodeEvent): void {
  switch (event.type) {
    case "tokens":
      for (const report of event.reports) {
        const listener = thread.listeners.get(report.id);
        if (report.finish !== null) thread.listeners.delete(report.id);
        listener?.tokens(report);
      }
      return;
    case "failed":
      for (const id of event.ids) {
        const listener = thread.listeners.get(id);
        thread.listeners.delete(id);
        listener?.fail(new FulgurError("ERR_INTERNAL", `Sampling failed: ${event.message}`));
      }
      return;
    default: {
      const change = thread.changes.get(event.version);
      thread.changes.delete(event.version);
      if (event.type === "load_failed") {
        change?.reject(new FulgurError("ERR_MODEL", `The runtime refused ${event.version}: ${event.message}`));
      } else change?.resolve();
    }
  }
}
