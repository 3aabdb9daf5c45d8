/** A stream of bytes, read in ever larger pieces while it comes fast. */
export interface BurstReader {
  /** Resolves with what came next; undefined at the end. The bytes are valid until the next read. */
  read(): Promise<Uint8Array | undefined>;
  cancel(reason?: unknown): Promise<void>;
}

const BUFFER_BYTES = 16 * 1024;
/** What is expected to come within this long may come as one piece. */
const HOLD_MS = 40;
/** Pieces that are read as they come, whatever the pace. */
const SINGLE_PIECES = 4;
/** How many must be expected within {@link HOLD_MS} for some to wait for others: 400 a second. */
const BURST_PIECES = 16;

/**
 * Reads a response's body. A plain read gives one HTTP chunk, which is one token of a stream, and costs more than all else
 * that is done with it; so a stream that is faster than four hundred tokens a second is read in pieces of what comes within
 * {@link HOLD_MS}. Slower ones, and the first tokens of each, are never held back. Should a burst stop dead, up to
 * {@link HOLD_MS} of it wait for what comes next; should the connection break then, they are lost with it.
 */
export function burstReader(stream: ReadableStream<Uint8Array>, now: () => number): BurstReader {
  const reader = stream.getReader({ mode: "byob" });
  let buffer = new ArrayBuffer(BUFFER_BYTES);
  let pieces = 0;
  let smallest = Infinity;
  let readAt = now();
  let wanted = 1;
  return {
    async read() {
      const view = new Uint8Array(buffer);
      const { done, value } = await (wanted === 1 ? reader.read(view) : reader.readAtLeast(wanted, view));
      if (value !== undefined) buffer = value.buffer;
      if (done) return undefined;
      pieces += 1;
      smallest = Math.min(smallest, value.length);
      const at = now();
      const expected = (value.length / Math.max(1, at - readAt)) * HOLD_MS;
      readAt = at;
      const isFast = pieces >= SINGLE_PIECES && expected >= smallest * BURST_PIECES;
      wanted = isFast ? Math.min(BUFFER_BYTES, Math.floor(expected)) : 1;
      return value;
    },
    cancel: (reason) => reader.cancel(reason).catch(() => undefined),
  };
}
