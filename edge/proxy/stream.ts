import { FulgurError, messageOf } from "#shared/errors.ts";
import { burstReader, type BurstReader } from "./burst-reader.ts";
import { broken, ClientGoneError, clientHasGone, record, recordFailure, recordingHeaders, type Call } from "./call.ts";
import type { Answered } from "./handle.ts";
import { eventReader, HEARTBEAT } from "./sse.ts";

/** An answer that stops coming for this long is given up. */
const IDLE_MS = 60_000;
/**
 * How often a comment is sent while nothing comes. A client that has left shows itself by nothing but a write that fails,
 * and one that waits must not think that we have.
 */
const HEARTBEAT_MS = 2000;

/** What comes of an upstream's events on their way to the client. */
export interface Rewriter {
  /** Whether the event that ends the answer has come. */
  readonly ended: boolean;
  /** Some upstream events' data → what may be sent at once. @throws FulgurError when one tells of a failure */
  take(events: readonly string[]): string;
  /** The upstream has said all: what is missing for the record is settled. @throws FulgurError where the answer is not whole */
  close(): void;
  /** What was held back until the record is committed. */
  ending(): string;
  /** How a failure in mid-stream is told. */
  fail(thrown: unknown): string;
}

/**
 * Passes an upstream's stream on as its rewriter says. What ends the answer leaves after the record is committed; a
 * failure in mid-stream becomes an event, since the status has long been sent.
 * @returns `finished` never rejects
 */
export function streamed(call: Call, upstream: Response, rewriter: Rewriter): Required<Answered> {
  if (upstream.body === null) throw broken(call.capture, "its answer has no body");
  const { readable, writable } = new IdentityTransformStream();
  return {
    response: new Response(readable, {
      headers: {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        ...recordingHeaders(call.caller),
      },
    }),
    finished: pump(call, upstream.body, { client: writable.getWriter(), rewriter }),
  };
}

interface Ends {
  readonly client: WritableStreamDefaultWriter<Uint8Array>;
  readonly rewriter: Rewriter;
}

async function pump(call: Call, upstream: ReadableStream<Uint8Array>, { client, rewriter }: Ends): Promise<void> {
  const { ending, deps } = call;
  const { send, sent } = outlet(client, () => ending.abort(new ClientGoneError()));
  const reader = burstReader(upstream, deps.now);
  let lastByteAt = deps.now();
  const watchdog = setInterval(() => {
    const idleMs = deps.now() - lastByteAt;
    if (idleMs >= HEARTBEAT_MS) send(HEARTBEAT);
    if (idleMs >= IDLE_MS) void reader.cancel();
  }, HEARTBEAT_MS);
  ending.signal.addEventListener("abort", () => void reader.cancel());
  try {
    const read = eventReader();
    while (!rewriter.ended) {
      const piece = await reader.read().catch((cause: unknown) => {
        throw broken(call.capture, `its stream broke (${messageOf(cause)})`);
      });
      ending.signal.throwIfAborted();
      const now = deps.now();
      if (piece === undefined) {
        if (now - lastByteAt >= IDLE_MS) throw idle();
        break;
      }
      const text = rewriter.take(read(piece));
      if (text !== "") send(text);
      lastByteAt = now;
    }
    rewriter.close();
    await record(call, { httpStatus: 200, error: null });
    send(rewriter.ending());
    // From here on the call is whole, whether or not its client is still there.
    await sent()
      .then(() => client.close())
      .catch(() => undefined);
  } catch (thrown) {
    await fail(call, thrown, { reader, client, rewriter, send, sent });
  } finally {
    clearInterval(watchdog);
  }
}

interface Outlet {
  /** Sends a text, at once or, while an earlier one is on its way, together with what comes after. */
  readonly send: (text: string) => void;
  /** Resolves when everything was taken; rejects when the client has gone. */
  readonly sent: () => Promise<void>;
}

/**
 * What gathers while a write is under way leaves as one.
 * @param onGone called when a write fails
 */
function outlet(client: WritableStreamDefaultWriter<Uint8Array>, onGone: () => void): Outlet {
  const encoder = new TextEncoder();
  let waiting = "";
  let writing: Promise<void> | undefined;
  const drain = async (): Promise<void> => {
    while (waiting !== "") {
      const text = waiting;
      waiting = "";
      await client.write(encoder.encode(text));
    }
    writing = undefined;
  };
  return {
    send(text) {
      waiting += text;
      if (writing !== undefined) return;
      writing = drain();
      writing.catch(onGone);
    },
    sent: async () => {
      await writing;
    },
  };
}

interface Failing extends Ends, Outlet {
  readonly reader: BurstReader;
}

async function fail(call: Call, thrown: unknown, { reader, client, rewriter, send, sent }: Failing): Promise<void> {
  // Frees the endpoint's row at once.
  await reader.cancel(messageOf(thrown));
  if (clientHasGone(call)) call.deps.counters.add("client_disconnects", 1);
  const told = await recordFailure(call, thrown);
  if (clientHasGone(call)) {
    await client.abort(thrown).catch(() => undefined);
    return;
  }
  try {
    send(rewriter.fail(told));
    await sent();
    await client.close();
  } catch {
    // The client has gone too; the record is written.
  }
}

function idle(): FulgurError {
  return new FulgurError("ERR_TIMEOUT", `the upstream sent nothing for ${IDLE_MS} ms in mid-stream`);
}
