/**
 * Frames to and from the worker (worker/channel.py): a length as a little-endian u64, then a safetensors file whose
 * metadata holds the message as JSON.
 */

import * as z from "zod";
import { FulgurError } from "#shared/errors.ts";

/** Arrays that a message carries, all of one dimension unless a shape stands beside them. */
export interface WireTensor {
  readonly data: Float32Array | Int32Array;
  /** Default: one dimension. */
  readonly shape?: readonly number[];
}

/** A message and its arrays. */
export interface Frame {
  readonly message: Readonly<Record<string, unknown>>;
  readonly tensors: ReadonlyMap<string, WireTensor>;
}

/** An answer's arrays are always floats. */
export interface Answer {
  readonly message: Readonly<Record<string, unknown>>;
  readonly tensors: ReadonlyMap<string, { readonly data: Float32Array; readonly shape: readonly number[] }>;
}

const WORD = 8;
const entrySchema = z.object({
  dtype: z.literal("F32"),
  shape: z.array(z.int().nonnegative()),
  data_offsets: z.tuple([z.int().nonnegative(), z.int().nonnegative()]),
});
const headerSchema = z.looseObject({ __metadata__: z.object({ message: z.string() }) });
const messageSchema = z.record(z.string(), z.unknown());

/** The parts of a frame, to be written one after another. */
export function encodeFrame({ message, tensors }: Frame): Uint8Array[] {
  const header: Record<string, unknown> = { __metadata__: { message: JSON.stringify(message) } };
  const parts: Uint8Array[] = [];
  let offset = 0;
  for (const [name, { data, shape = [data.length] }] of tensors) {
    const end = offset + data.byteLength;
    header[name] = { dtype: data instanceof Float32Array ? "F32" : "I32", shape, data_offsets: [offset, end] };
    parts.push(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    offset = end;
  }
  const json = Buffer.from(JSON.stringify(header));
  const padded = Buffer.alloc(Math.ceil(json.length / WORD) * WORD, " ");
  json.copy(padded);
  const lengths = Buffer.alloc(2 * WORD);
  lengths.writeBigUInt64LE(BigInt(WORD + padded.length + offset));
  lengths.writeBigUInt64LE(BigInt(padded.length), WORD);
  return [lengths, padded, ...parts];
}

/** Puts chunks of a stream together into frames. */
export class FrameReader {
  #chunks: Buffer[] = [];
  #bytes = 0;

  /** @returns the bodies of the frames that this chunk has made whole */
  push(chunk: Buffer): Buffer[] {
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    const bodies: Buffer[] = [];
    for (;;) {
      const length = this.#length();
      if (length === undefined || this.#bytes < WORD + length) return bodies;
      const all = this.#chunks.length === 1 ? this.#chunks[0] : Buffer.concat(this.#chunks);
      if (all === undefined) return bodies;
      // Copied, so that its floats begin at a multiple of four whatever came before it.
      const body = Buffer.from(new Uint8Array(all.subarray(WORD, WORD + length)).buffer);
      bodies.push(body);
      this.#chunks = [all.subarray(WORD + length)];
      this.#bytes = all.length - WORD - length;
    }
  }

  #length(): number | undefined {
    if (this.#bytes < WORD) return undefined;
    const [first] = this.#chunks;
    if (first !== undefined && first.length < WORD) this.#chunks = [Buffer.concat(this.#chunks)];
    return Number(this.#chunks[0]?.readBigUInt64LE() ?? 0);
  }
}

/** @throws FulgurError ERR_INTERNAL for bytes that are no answer of the worker */
export function decodeAnswer(body: Buffer): Answer {
  const length = Number(body.readBigUInt64LE());
  const header = headerSchema.safeParse(parseJson(body.subarray(WORD, WORD + length)));
  if (!header.success) throw new FulgurError("ERR_INTERNAL", "The torch worker's answer has no readable header.");
  const { __metadata__: metadata, ...entries } = header.data;
  const message = messageSchema.safeParse(parseJson(metadata.message));
  if (!message.success) throw new FulgurError("ERR_INTERNAL", "The torch worker's answer has no readable message.");
  const begin = body.byteOffset + WORD + length;
  const tensors = new Map(
    Object.entries(entries).map(([name, raw]) => {
      const entry = entrySchema.safeParse(raw);
      if (!entry.success) throw new FulgurError("ERR_INTERNAL", `The torch worker's "${name}" are no 32-bit floats.`);
      const { shape, data_offsets: offsets } = entry.data;
      const count = (offsets[1] - offsets[0]) / Float32Array.BYTES_PER_ELEMENT;
      return [name, { shape, data: new Float32Array(body.buffer, begin + offsets[0], count) }];
    }),
  );
  return { message: message.data, tensors };
}

function parseJson(text: Buffer | string): unknown {
  try {
    return JSON.parse(text.toString());
  } catch {
    return undefined;
  }
}
