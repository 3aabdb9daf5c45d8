/** A load of completions over HTTP: a number of streams, each asking again as soon as it is answered. */

import { Agent, request } from "node:http";
import { benchPrompt } from "./model.ts";

/** What is asked for. */
export interface Load {
  readonly streams: number;
  readonly requests: number;
  readonly promptTokens: number;
  readonly answerTokens: number;
  readonly model: string;
  /** Prompts are never repeated: the next ones of this counter are taken. */
  readonly counter: { next: number };
  /** `whole` answers are what agents ask for mostly; `stream` tells when the first token comes. */
  readonly reply: "whole" | "stream";
}

/** What came of it. */
export interface LoadResult {
  readonly tokensPerSecond: number;
  /** Of each request, until the first bytes of its reply: a token where it is streamed. */
  readonly firstMs: readonly number[];
}

/**
 * Runs a load.
 * @throws Error when an answer fails or has another length than asked for
 */
export async function runLoad(url: string, load: Load): Promise<LoadResult> {
  const agent = new Agent({ keepAlive: true, maxSockets: load.streams });
  try {
    let left = load.requests;
    const firstMs: number[] = [];
    const stream = async (): Promise<void> => {
      while (left-- > 0) {
        const prompt = benchPrompt(load.counter.next++, load.promptTokens);
        const { tokens, waitedMs } = await complete(url, agent, load, prompt);
        if (tokens !== load.answerTokens)
          throw new Error(`${url} gave ${tokens} tokens instead of ${load.answerTokens}`);
        firstMs.push(waitedMs);
      }
    };
    const startMs = performance.now();
    await Promise.all(Array.from({ length: load.streams }, stream));
    const seconds = (performance.now() - startMs) / 1000;
    return { tokensPerSecond: (load.requests * load.answerTokens) / seconds, firstMs };
  } finally {
    agent.destroy();
  }
}

function complete(
  url: string,
  agent: Agent,
  load: Load,
  prompt: readonly number[],
): Promise<{ readonly tokens: number; readonly waitedMs: number }> {
  const body = JSON.stringify({
    model: load.model,
    prompt,
    max_tokens: load.answerTokens,
    ignore_eos: true,
    temperature: 1,
    logprobs: 0,
    return_token_ids: true,
    stream: load.reply === "stream",
  });
  return new Promise((resolve, reject) => {
    const sentMs = performance.now();
    let waitedMs: number | undefined;
    const sent = request(
      `${url}/v1/completions`,
      {
        method: "POST",
        agent,
        headers: { "content-type": "application/json", "content-length": Buffer.byteLength(body) },
      },
      (response) => {
        const parts: Buffer[] = [];
        response.on("data", (part: Buffer) => {
          waitedMs ??= performance.now() - sentMs;
          parts.push(part);
        });
        response.on("error", reject);
        response.on("end", () => {
          const text = Buffer.concat(parts).toString("utf8");
          if (response.statusCode !== 200) {
            reject(new Error(`${url} answered ${response.statusCode}: ${text.slice(0, 300)}`));
            return;
          }
          resolve({ tokens: countIds(text), waitedMs: waitedMs ?? NaN });
        });
      },
    );
    sent.on("error", reject);
    sent.end(body);
  });
}

/** Ids of all parts of a reply; not those of the prompt, whose field has a longer name. */
function countIds(text: string): number {
  return [...text.matchAll(/"token_ids":\s*\[([\d,\s]+)\]/g)].reduce(
    (sum, [, ids = ""]) => sum + ids.split(",").length,
    0,
  );
}
