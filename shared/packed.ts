import { FulgurError } from "#shared/errors.ts";

/**
 * Token ids and logprobs as packed little-endian bytes, 4 a value: a tenth of their size in JSON.
 * Every platform that workerd and Node run on is little-endian, so the bytes are the typed array's own.
 */
export function packIds(ids: ArrayLike<number>): Uint8Array {
  return new Uint8Array(Int32Array.from(ids).buffer);
}

/** Packs float32 values (logprobs); see {@link packIds}. */
export function packFloats(values: ArrayLike<number>): Uint8Array {
  return new Uint8Array(Float32Array.from(values).buffer);
}

/** @throws FulgurError ERR_STORE when the byte length is not a multiple of 4 */
export function unpackIds(bytes: Uint8Array): Int32Array {
  return new Int32Array(aligned(bytes));
}

/** @throws FulgurError ERR_STORE when the byte length is not a multiple of 4 */
export function unpackFloats(bytes: Uint8Array): Float32Array {
  return new Float32Array(aligned(bytes));
}

function aligned(bytes: Uint8Array): ArrayBuffer {
  if (bytes.byteLength % 4 !== 0) {
    throw new FulgurError(
      "ERR_STORE",
      `packed values take 4 bytes each, ${bytes.byteLength} bytes came from the store`,
    );
  }
  return bytes.slice().buffer;
}
