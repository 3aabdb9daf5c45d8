/**
 * A worker thread that samples. ONNX Runtime blocks its thread while it runs, so it never shares one with HTTP.
 * Commands are taken between steps only.
 */

import { parentPort } from "node:worker_threads";
import { InferenceSession } from "onnxruntime-node";
import { messageOf } from "#shared/errors.ts";
import { Decoder, type SampledToken } from "./decoder.ts";
import type { DecodeCommand, DecodeEvent, TokenReport } from "./protocol.ts";
import type { Alternative } from "./sampling.ts";
import { SESSION_OPTIONS } from "./session-options.ts";

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

/** A thread that had nothing to do for this long gives back what its batches took. */
const IDLE_MS = 5000;

const decoders = new Map<string, Decoder>();
const progress = new Map<number, Progress>();
const inbox: DecodeCommand[] = [];
let isWorking = false;
let idleTimer: NodeJS.Timeout | undefined;

if (parentPort === null) throw new Error("decode-worker.ts is started by the inference endpoint, as a worker thread");
const port = parentPort;
port.on("message", (command: DecodeCommand) => {
  inbox.push(command);
  if (!isWorking) void work();
});

function send(event: DecodeEvent): void {
  port.postMessage(event);
}

/** Takes commands and steps every decoder in turn until there is nothing left to do. */
async function work(): Promise<void> {
  isWorking = true;
  clearTimeout(idleTimer);
  let hasMore = true;
  while (hasMore || inbox.length > 0) {
    for (const command of inbox.splice(0)) await obey(command);
    hasMore = false;
    for (const [version, decoder] of decoders) {
      if (decoder.running + decoder.waiting > 0) hasMore = (await stepOf(version, decoder)) || hasMore;
    }
  }
  isWorking = false;
  idleTimer = setTimeout(() => {
    for (const decoder of decoders.values()) decoder.trim();
  }, IDLE_MS);
}

async function stepOf(version: string, decoder: Decoder): Promise<boolean> {
  const reports: TokenReport[] = [];
  try {
    return await decoder.step((sampled) => {
      const report = progress.get(sampled.id)?.add(sampled) ?? null;
      if (report === null) return;
      reports.push(report);
      if (report.finish !== null) progress.delete(report.id);
    });
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

async function obey(command: DecodeCommand): Promise<void> {
  switch (command.type) {
    case "load": {
      const { version, graph, architecture, options } = command;
      try {
        const session = await InferenceSession.create(graph, SESSION_OPTIONS);
        decoders.set(version, new Decoder(session, architecture, options));
        send({ type: "loaded", version });
      } catch (error) {
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
    case "submit": {
      const { version, request, report } = command;
      const decoder = decoders.get(version);
      if (decoder === undefined) {
        send({ type: "failed", ids: [request.id], message: `Version ${version} is not loaded` });
        return;
      }
      progress.set(request.id, new Progress(version, report));
      decoder.submit(request);
      return;
    }
    case "cancel": {
      const found = progress.get(command.id);
      progress.delete(command.id);
      if (found !== undefined) decoders.get(found.version)?.cancel(command.id);
    }
  }
}
