/**
 * Keys and values of a batch of sequences, in buffers that JavaScript owns: ONNX Runtime reads inputs in place
 * but copies every output, so the graph returns only the new keys and values and they are put here.
 */

import type { Architecture } from "../model/architecture.ts";

/** Positions are added in steps of this; also keeps each row of scores aligned, so that padding cannot change a sum. */
export const POSITION_STEP = 64;

/** Sizes of one position's keys and values. */
export interface KvShape {
  /** Keys and values of every layer: 2 · layers planes, k then v of each layer. */
  readonly planes: number;
  readonly kvHeads: number;
  readonly headSize: number;
}

/** The sizes that an architecture asks for. */
export function kvShapeOf({ layers, kvHeads, headSize }: Architecture): KvShape {
  return { planes: 2 * layers, kvHeads, headSize };
}

/** Rows 0 … rows−1 are in use; each plane is [capacity, kvHeads, positions, headSize]. */
export class KvBuffer {
  readonly shape: KvShape;
  #planes: Float32Array[];
  #capacity = 0;
  #positions = 0;

  constructor(shape: KvShape) {
    this.shape = shape;
    this.#planes = Array.from({ length: shape.planes }, () => new Float32Array(0));
  }

  /** Positions that every row has room for, a multiple of POSITION_STEP. */
  get positions(): number {
    return this.#positions;
  }

  /** Plane p of the first `rows` rows, [rows, kvHeads, positions, headSize], in place. */
  plane(p: number, rows: number): Float32Array {
    const { kvHeads, headSize } = this.shape;
    const plane = this.#planes[p];
    if (plane === undefined) throw new RangeError(`No plane ${p} of ${this.shape.planes}`);
    return plane.subarray(0, rows * kvHeads * this.#positions * headSize);
  }

  /**
   * Makes room, keeping what `used` rows hold.
   * @param positions at least this many; rounded up to a multiple of POSITION_STEP
   */
  reserve(rows: number, positions: number, used: number): void {
    const wanted = Math.max(POSITION_STEP, Math.ceil(positions / POSITION_STEP) * POSITION_STEP);
    const { kvHeads, headSize } = this.shape;
    // With nothing in use the positions may shrink again, or one long sequence would slow all later ones.
    const nextPositions = used === 0 ? wanted : Math.max(wanted, this.#positions);
    let nextCapacity = this.#capacity;
    while (nextCapacity < rows) nextCapacity = Math.max(1, nextCapacity * 2);
    if (nextPositions === this.#positions && nextCapacity === this.#capacity) return;
    const from = this.#positions * headSize;
    const to = nextPositions * headSize;
    this.#planes = this.#planes.map((old) => {
      const grown = new Float32Array(nextCapacity * kvHeads * to);
      for (let head = 0; head < used * kvHeads; head++) {
        grown.set(old.subarray(head * from, head * from + Math.min(from, to)), head * to);
      }
      free(old);
      return grown;
    });
    this.#positions = nextPositions;
    this.#capacity = nextCapacity;
  }

  /** Gives the memory back; the buffer is as new. */
  release(): void {
    for (const plane of this.#planes) free(plane);
    this.#planes = this.#planes.map(() => new Float32Array(0));
    this.#capacity = 0;
    this.#positions = 0;
  }

  /** Copies the first `length` positions of a row, of this or another buffer, over row `to`. */
  copyRow(source: KvBuffer, from: number, to: number, length: number): void {
    const { planes, kvHeads, headSize } = this.shape;
    const sourceStride = source.#positions * headSize;
    const stride = this.#positions * headSize;
    for (let p = 0; p < planes; p++) {
      const sourcePlane = source.#planes[p];
      const plane = this.#planes[p];
      if (sourcePlane === undefined || plane === undefined) continue;
      for (let head = 0; head < kvHeads; head++) {
        const start = (from * kvHeads + head) * sourceStride;
        plane.set(sourcePlane.subarray(start, start + length * headSize), (to * kvHeads + head) * stride);
      }
    }
  }

  /**
   * Puts what a run returned behind what each row holds.
   * @param added [planes, rows, kvHeads, newPositions, headSize]
   * @param lengths positions that each row held before
   */
  append(added: Float32Array, lengths: ArrayLike<number>, rows: number, newPositions: number): void {
    const { planes, kvHeads, headSize } = this.shape;
    const span = newPositions * headSize;
    let source = 0;
    for (let p = 0; p < planes; p++) {
      const plane = this.#planes[p];
      if (plane === undefined) continue;
      for (let row = 0; row < rows; row++) {
        let target = (row * kvHeads * this.#positions + (lengths[row] ?? 0)) * headSize;
        for (let head = 0; head < kvHeads; head++) {
          // A loop and not set(): for one position the subarray object costs more than the copy.
          for (let i = 0; i < span; i++) plane[target + i] = added[source + i] ?? 0;
          source += span;
          target += this.#positions * headSize;
        }
      }
    }
  }

  /** A block of a row as one array, [planes, kvHeads, length, headSize]. */
  readBlock(row: number, start: number, length: number): Float32Array {
    const { planes, kvHeads, headSize } = this.shape;
    const block = new Float32Array(planes * kvHeads * length * headSize);
    this.#eachHead(row, start, length, (plane, at, blockAt) => {
      block.set(plane.subarray(at, at + length * headSize), blockAt);
    });
    return block;
  }

  /** The reverse of `readBlock`. */
  writeBlock(block: Float32Array, row: number, start: number, length: number): void {
    const { headSize } = this.shape;
    this.#eachHead(row, start, length, (plane, at, blockAt) => {
      plane.set(block.subarray(blockAt, blockAt + length * headSize), at);
    });
  }

  #eachHead(
    row: number,
    start: number,
    length: number,
    visit: (plane: Float32Array, at: number, blockAt: number) => void,
  ): void {
    const { kvHeads, headSize } = this.shape;
    let blockAt = 0;
    for (const plane of this.#planes) {
      for (let head = 0; head < kvHeads; head++) {
        visit(plane, ((row * kvHeads + head) * this.#positions + start) * headSize, blockAt);
        blockAt += length * headSize;
      }
    }
  }
}

/** Frees the memory now: an idle thread may not collect its garbage for minutes. */
function free({ buffer }: Float32Array): void {
  if (buffer instanceof ArrayBuffer) buffer.transfer(0);
}
