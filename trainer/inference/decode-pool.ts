/** The decode threads as one: versions are loaded into all of them, each sequence goes to one. */

import { setTimeout as pause } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { FulgurError, messageOf } from "#shared/errors.ts";
import type { Architecture } from "../model/architecture.ts";
import type { DecoderOptions, SequenceRequest } from "./decoder.ts";
import type { AnswerForm } from "./json-schema-grammar.ts";
import { type DecodeCommand, type DecodeEvent, movable, type TokenReport } from "./protocol.ts";
import { stopWorker } from "../stop-worker.ts";
import type { Vocabulary } from "./token-matcher.ts";

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
  /** What the answer must be like; `learn` comes first. */
  readonly form?: AnswerForm | null;
  /** The thread of an earlier turn, taken unless it is much busier than another. */
  readonly preferredThread?: number | undefined;
}

interface Thread {
  readonly worker: Worker;
  readonly listeners: Map<number, SequenceListener>;
  /** Loaded here. */
  readonly versions: Set<string>;
  /** By version: who waits for it to be loaded or unloaded; loading gives the graph back. */
  readonly changes: Map<string, PromiseWithResolvers<Uint8Array | null>>;
}

/** How many more sequences a thread may have than the idlest one and still keep its earlier rollouts. */
const AFFINITY_SLACK = 4;

/** How long the first answers of a version have the processors for themselves; then further threads go on and load it. */
const SPREAD_PAUSE_MS = 30;

/** A fixed number of decode threads. */
export class DecodePool {
  readonly #threads: readonly Thread[];
  readonly #fatal: (error: Error) => void;
  /** By version: the loading into threads beyond the first. */
  readonly #spreading = new Map<string, Promise<void>>();
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
   * Stops sampling while a version is being built, for a quarter of a second at most: building takes several times as
   * long where it shares the processors with decoding.
   */
  hold(version: string): void {
    for (const thread of this.#threads) post(thread, { type: "hold", version });
  }

  /** Goes on with what was stopped for a version. */
  release(version: string): void {
    for (const thread of this.#threads) post(thread, { type: "release", version });
  }

  /**
   * Loads a version into one thread, which answers by it from then on, and goes on to load it into the others.
   * @param graph an encoded decode graph; given away
   * @throws FulgurError ERR_MODEL when the runtime refuses the graph; it is then loaded nowhere
   */
  async load(version: string, graph: Uint8Array, architecture: Architecture, options: DecoderOptions): Promise<void> {
    const first = this.#at(this.#idlest());
    const others = this.#threads.filter((thread) => thread !== first);
    const into = (thread: Thread, bytes: Uint8Array, moved: readonly ArrayBuffer[]): Promise<Uint8Array | null> =>
      this.#change(thread, { type: "load", version, graph: bytes, architecture, options }, moved);
    const returned = await into(first, graph, movable(graph));
    if (returned === null) return;
    const spread = async (): Promise<void> => {
      await pause(SPREAD_PAUSE_MS);
      for (const thread of others) post(thread, { type: "release", version });
      // Every thread but the last gets a copy.
      const rest = others.map((thread, t) => into(thread, returned, t === others.length - 1 ? movable(returned) : []));
      const results = await Promise.allSettled(rest);
      this.#spreading.delete(version);
      // The first thread took the same graph, so this one lacks memory: the version is answered without it.
      for (const result of results) {
        if (result.status === "rejected") process.stderr.write(`inference: ${messageOf(result.reason)}\n`);
      }
    };
    this.#spreading.set(version, spread());
  }

  /** Frees a version's sessions; the caller knows that none of its sequences runs. */
  async unload(version: string): Promise<void> {
    await this.#spreading.get(version);
    await Promise.all(this.#threads.map((thread) => this.#change(thread, { type: "unload", version })));
  }

  /** Gives all threads the vocabulary that forms of answers are matched with. */
  learn(vocabulary: Vocabulary): void {
    for (const thread of this.#threads) post(thread, { type: "vocabulary", vocabulary });
  }

  /** Starts sampling a sequence; its id is given here. */
  submit(
    version: string,
    request: Omit<SequenceRequest, "id">,
    listener: SequenceListener,
    { report, form = null, preferredThread }: SubmitOptions,
  ): RunningSequence {
    const thread = this.#choose(version, preferredThread);
    const id = this.#nextId++;
    const chosen = this.#at(thread);
    chosen.listeners.set(id, listener);
    post(chosen, { type: "submit", version, request: { ...request, id }, form, report });
    return {
      thread,
      cancel: () => {
        if (chosen.listeners.delete(id)) post(chosen, { type: "cancel", id });
      },
    };
  }

  /** Ends the threads as soon as what each one runs is done; sequences that are not finished are lost. */
  async close(): Promise<void> {
    this.#isClosing = true;
    await Promise.all(this.#threads.map(({ worker }) => stopWorker(worker)));
  }

  #choose(version: string, preferred: number | undefined): number {
    const idlest = this.#idlest(version);
    if (preferred === undefined || this.#threads[preferred]?.versions.has(version) !== true) return idlest;
    const excess = this.#at(preferred).listeners.size - this.#at(idlest).listeners.size;
    return excess <= AFFINITY_SLACK ? preferred : idlest;
  }

  /** @param version of the threads that have it; the first one where none has */
  #idlest(version?: string): number {
    let idlest = 0;
    let fewest = Infinity;
    for (const [t, { listeners, versions }] of this.#threads.entries()) {
      if (listeners.size >= fewest || (version !== undefined && !versions.has(version))) continue;
      idlest = t;
      fewest = listeners.size;
    }
    return idlest;
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
  ): Promise<Uint8Array | null> {
    const change = Promise.withResolvers<Uint8Array | null>();
    if (command.type === "unload") thread.versions.delete(command.version);
    thread.changes.set(command.version, change);
    post(thread, command, moved);
    return change.promise;
  }

  #start(): Thread {
    const worker = new Worker(new URL("./decode-worker.ts", import.meta.url));
    const thread: Thread = { worker, listeners: new Map(), versions: new Set(), changes: new Map() };
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
    case "loaded":
      thread.versions.add(event.version);
      changed(thread, event.version)?.resolve(event.graph);
      return;
    case "unloaded":
      changed(thread, event.version)?.resolve(null);
      return;
    case "load_failed":
      changed(thread, event.version)?.reject(
        new FulgurError("ERR_MODEL", `The runtime refused ${event.version}: ${event.message}`),
      );
  }
}

function changed({ changes }: Thread, version: string): PromiseWithResolvers<Uint8Array | null> | undefined {
  const change = changes.get(version);
  changes.delete(version);
  return change;
}
