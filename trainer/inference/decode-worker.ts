/**
 * A worker thread that samples. ONNX Runtime blocks its thread while it runs, so it never shares one with HTTP.
 * Commands are taken between steps only, but for the one that makes room for a version that is being built.
 */

import { parentPort } from "node:worker_threads";
import { InferenceSession } from "onnxruntime-node";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { Decoder, type SampledToken } from "./decoder.ts";
import { FormMatchers } from "./form-matchers.ts";
import type { AnswerForm } from "./json-schema-grammar.ts";
import { type DecodeCommand, type DecodeEvent, movable, type TokenReport } from "./protocol.ts";
import type { Alternative } from "./sampling.ts";
import { SESSION_OPTIONS } from "./session-options.ts";
import type { TokenMatcher } from "./token-matcher.ts";

/** A sequence in progress, with the tokens that were not reported yet. */
class Progress {
  readonly version: string;
  readonly report: "each" | "whole";
  #tokens: number[] = [];
  #logprobs: number[] = [];
  #alternatives: (readonly Alternative[])[] = [];
  #cachedTokens: number | null = null;

  constructor(version: string, report: "each" | "whole") {
    this.version = version;
    this.report = report;
  }

  add(sampled: SampledToken): TokenReport | null {
    this.#tokens.push(sampled.token);
    this.#logprobs.push(sampled.logprob);
    if (sampled.alternatives !== null) this.#alternatives.push(sampled.alternatives);
    this.#cachedTokens ??= sampled.cachedTokens;
    if (this.report === "whole" && sampled.finish === null) return null;
    const report: TokenReport = {
      id: sampled.id,
      tokens: this.#tokens,
      logprobs: this.#logprobs,
      alternatives: this.#alternatives.length > 0 ? this.#alternatives : null,
      finish: sampled.finish,
      cachedTokens: this.#cachedTokens,
    };
    this.#tokens = [];
    this.#logprobs = [];
    this.#alternatives = [];
    this.#cachedTokens = null;
    return report;
  }
}

/** Commands that are taken between steps. */
type QueuedCommand = Exclude<DecodeCommand, { type: "hold" | "stop" }>;

/** The longest that a thread stands still for a version that is being built. */
const BUILD_HOLD_MS = 250;
/** How long it goes on to do so for the first request. */
const REQUEST_HOLD_MS = 25;
/** A thread that had nothing to do for this long gives back what its batches took. */
const IDLE_MS = 5000;

const decoders = new Map<string, Decoder>();
const progress = new Map<number, Progress>();
const inbox: QueuedCommand[] = [];
let forms: FormMatchers | null = null;
let isWorking = false;
/** The version that this thread stands still for, and until when at most. */
let held: { readonly version: string; readonly untilMs: number } | null = null;
/** Told when a command arrives. */
let arrival = Promise.withResolvers<void>();
let idleTimer: NodeJS.Timeout | undefined;

if (parentPort === null) throw new Error("decode-worker.ts is started by the inference endpoint, as a worker thread");
const port = parentPort;
port.on("message", (command: DecodeCommand) => {
  if (command.type === "stop") process.exit();
  // Taken at once, in the middle of a step: the builder waits for the processor.
  if (command.type === "hold") hold(command.version, BUILD_HOLD_MS);
  else inbox.push(command);
  arrival.resolve();
  if (!isWorking) void work();
});

function send(event: DecodeEvent, moved: readonly ArrayBuffer[] = []): void {
  port.postMessage(event, [...moved]);
}

/** Takes commands and steps every decoder in turn until there is nothing left to do. */
async function work(): Promise<void> {
  isWorking = true;
  clearTimeout(idleTimer);
  let hasMore = true;
  while (hasMore || inbox.length > 0) {
    for (const command of inbox.splice(0)) await obey(command);
    hasMore = false;
    let isIdle = true;
    for (const [version, decoder] of decoders) {
      if (decoder.running + decoder.waiting === 0) continue;
      if (isHeldFrom(version)) hasMore = true;
      else {
        isIdle = false;
        hasMore = (await stepOf(version, decoder)) || hasMore;
      }
    }
    if (hasMore && isIdle) await commandOr(held?.untilMs ?? 0);
  }
  isWorking = false;
  idleTimer = setTimeout(() => {
    for (const decoder of decoders.values()) decoder.trim();
  }, IDLE_MS);
}

function hold(version: string, forMs: number): void {
  held = { version, untilMs: performance.now() + forMs };
}

function letGo(version: string): void {
  if (held?.version === version) held = null;
}

/** Whether a version has to stand back for another one now. */
function isHeldFrom(version: string): boolean {
  return held !== null && held.version !== version && performance.now() < held.untilMs;
}

/** Waits for the next command, or until then. */
async function commandOr(untilMs: number): Promise<void> {
  if (inbox.length > 0) return;
  arrival = Promise.withResolvers();
  const timer = setTimeout(arrival.resolve, Math.max(0, Math.ceil(untilMs - performance.now())));
  await arrival.promise;
  clearTimeout(timer);
}

async function stepOf(version: string, decoder: Decoder): Promise<boolean> {
  const reports: TokenReport[] = [];
  try {
    const emit = (sampled: SampledToken): void => {
      letGo(version);
      const report = progress.get(sampled.id)?.add(sampled) ?? null;
      if (report === null) return;
      reports.push(report);
      if (report.finish !== null) progress.delete(report.id);
    };
    return await decoder.step(emit, () => isHeldFrom(version));
  } catch (error) {
    const ids = [...progress].filter(([, each]) => each.version === version).map(([id]) => id);
    for (const id of ids) {
      progress.delete(id);
      decoder.cancel(id);
    }
    send({ type: "failed", ids, message: messageOf(error) });
    return false;
  } finally {
    if (reports.length > 0) send({ type: "tokens", reports });
  }
}

function matcherOf(form: AnswerForm, stopIds: readonly number[]): TokenMatcher {
  if (forms === null) throw new FulgurError("ERR_INTERNAL", "A form came before the vocabulary");
  return forms.matcher(form, stopIds);
}

async function obey(command: QueuedCommand): Promise<void> {
  switch (command.type) {
    case "load": {
      const { version, graph, architecture, options } = command;
      try {
        const session = await InferenceSession.create(graph, SESSION_OPTIONS);
        decoders.set(version, new Decoder(session, architecture, options));
        if (held?.version === version) hold(version, REQUEST_HOLD_MS);
        send({ type: "loaded", version, graph }, movable(graph));
      } catch (error) {
        letGo(version);
        send({ type: "load_failed", version, message: messageOf(error) });
      }
      return;
    }
    case "unload": {
      const decoder = decoders.get(command.version);
      decoders.delete(command.version);
      decoder?.trim();
      await decoder?.close();
      send({ type: "unloaded", version: command.version });
      return;
    }
    case "release":
      letGo(command.version);
      return;
    case "vocabulary":
      forms = new FormMatchers(command.vocabulary);
      return;
    case "submit": {
      const { version, request, form, report } = command;
      const decoder = decoders.get(version);
      if (decoder === undefined) {
        send({ type: "failed", ids: [request.id], message: `Version ${version} is not loaded` });
        return;
      }
      try {
        decoder.submit(request, form === null ? null : matcherOf(form, request.stopIds));
        progress.set(request.id, new Progress(version, report));
      } catch (error) {
        send({ type: "failed", ids: [request.id], message: messageOf(error) });
      }
      return;
    }
    case "cancel": {
      const found = progress.get(command.id);
      progress.delete(command.id);
      if (found !== undefined) decoders.get(found.version)?.cancel(command.id);
    }
  }
}
