import { setTimeout as pause } from "node:timers/promises";
import { z } from "zod";
import { messageOf } from "#shared/errors.ts";
import type { Mode } from "#shared/words.ts";
import type { Ledger } from "./ledger.ts";

/** Clients that call on and on through whatever happens, and note in a ledger what they were promised. */
export interface Load {
  /** How each call ended, in order of their ends. */
  readonly outcomes: readonly Outcome[];
  /** Ends it; resolves when the last call has ended. */
  stop(): Promise<void>;
}

export interface Outcome {
  readonly mode: Mode;
  /** Of the answer; of a stream that failed on its way, 200 with the error's `code`. Null where none came. */
  readonly status: number | null;
  readonly code: string | null;
  readonly retryAfter: string | null;
  /** Whether the answer came whole. */
  readonly whole: boolean;
  /** `performance.now()`. */
  readonly startedAt: number;
  readonly ms: number;
  /** What went wrong, where no answer came. */
  readonly failure?: string;
}

export interface LoadOptions {
  /** Where the edge listens now. */
  readonly url: () => string;
  readonly ledger: Ledger;
  /** Begins each call's nonce. */
  readonly name: string;
  readonly mode: Mode;
  /** A rollout's token; asked for again when one was refused. It may fail, and is then asked again. */
  readonly token: () => Promise<string>;
  /** Of each client, between its calls. */
  readonly paceMs: number;
  readonly clients?: number;
  /** Every so many calls of a client is a stream; 0 none. */
  readonly streamEvery?: number;
  /** Called after each call that was answered whole. */
  readonly afterCall?: (token: string, nonce: string) => Promise<void>;
}

/** A client gives up on an answer after this long; nothing may hang for longer. */
export const PATIENCE_MS = 30_000;

export function startLoad(options: LoadOptions): Load {
  const { name, token, paceMs, clients = 2, streamEvery = 3, afterCall } = options;
  const over = new AbortController();
  const outcomes: Outcome[] = [];
  const client = async (number: number): Promise<void> => {
    let key: string | undefined;
    for (let turn = 0; !over.signal.aborted; turn++) {
      try {
        key ??= await token();
      } catch {
        // Nobody gives tokens now.
        await pause(paceMs);
        continue;
      }
      const nonce = `${name}-${number}-${turn}`;
      const stream = streamEvery > 0 && turn % streamEvery === streamEvery - 1;
      const outcome = await callOnce(options, { key, nonce, stream });
      outcomes.push(outcome);
      if (outcome.whole) await afterCall?.(key, nonce);
      // Its rollout may have ended, its budget be spent.
      if (outcome.status === 401 || outcome.status === 403) key = undefined;
      await pause(paceMs);
    }
  };
  const running = Array.from({ length: clients }, (_, number) => client(number));
  return {
    outcomes,
    async stop() {
      over.abort();
      await Promise.all(running);
    },
  };
}

/** Asks again and again, since every write is repeatable, until it is taken or `over`. */
export async function insist<T>(ask: () => Promise<T>, over: AbortSignal, everyMs = 100): Promise<T | undefined> {
  while (!over.aborted) {
    try {
      return await ask();
    } catch {
      await pause(everyMs);
    }
  }
  return undefined;
}

interface OneCall {
  readonly key: string;
  readonly nonce: string;
  readonly stream: boolean;
}

async function callOnce({ url, ledger, mode }: LoadOptions, { key, nonce, stream }: OneCall): Promise<Outcome> {
  const startedAt = performance.now();
  const ended = (rest: Partial<Outcome>): Outcome => ({
    ...{ mode, status: null, code: null, retryAfter: null, whole: false, startedAt },
    ms: performance.now() - startedAt,
    ...rest,
  });
  ledger.asked(nonce);
  try {
    const response = await fetch(`${url()}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${key}` },
      body: JSON.stringify({ model: "flight", messages: [{ role: "user", content: nonce }], max_tokens: 4, stream }),
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    const { status } = response;
    const retryAfter = response.headers.get("retry-after");
    const text = await response.text();
    const read = response.ok && stream ? readStream(text) : readWhole(text);
    if (read.id !== undefined && response.ok) ledger.call(read.id, nonce);
    return ended({ status, retryAfter, code: read.code, whole: response.ok && read.id !== undefined });
  } catch (thrown) {
    return ended({ failure: messageOf(thrown) });
  }
}

interface Read {
  /** The call's, where the answer came whole. */
  readonly id: string | undefined;
  readonly code: string | null;
}

const answerSchema = z.object({
  id: z.string().optional(),
  error: z.object({ code: z.string().nullish() }).optional(),
});

function readWhole(text: string): Read {
  const { id, error } = answerSchema.parse(JSON.parse(text));
  return { id: error === undefined ? id : undefined, code: error?.code ?? null };
}

/** A stream is whole, and thereby acknowledged, when its last event is [DONE]. */
function readStream(text: string): Read {
  const data = text.split("\n\n").flatMap((event) => (event.startsWith("data: ") ? [event.slice(6)] : []));
  const isDone = data.at(-1) === "[DONE]";
  const chunks = data.filter((each) => each !== "[DONE]").map((each) => answerSchema.parse(JSON.parse(each)));
  const failed = chunks.find(({ error }) => error !== undefined);
  return {
    id: isDone && failed === undefined ? chunks.find(({ id }) => id !== undefined)?.id : undefined,
    code: failed?.error?.code ?? null,
  };
}
