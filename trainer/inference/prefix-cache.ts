/**
 * Keys and values of prompt prefixes already computed, in blocks of BLOCK_TOKENS tokens. A block is known by the whole
 * prefix that it ends, never by its own tokens alone. One cache per policy version: nothing survives a change of weights.
 */

/** Tokens of a block, and of a prefill chunk: chunks begin at multiples of it, so that a prefix gives the same bits wherever it was cut. */
export const BLOCK_TOKENS = 32;

interface Block {
  readonly id: number;
  readonly kv: Float32Array;
}

/** A least-recently-used cache of prefix blocks, bounded by bytes. */
export class PrefixCache {
  readonly #maxBytes: number;
  readonly #blocks = new Map<string, Block>();
  #bytes = 0;
  #nextId = 1;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** Bytes of keys and values held. */
  get bytes(): number {
    return this.#bytes;
  }

  /**
   * The cached blocks that `tokens` begin with, in order.
   * @param maxTokens look no further; the last prompt token must always be computed, for its logits
   */
  lookup(tokens: Int32Array, maxTokens: number): Float32Array[] {
    const found: [string, Block][] = [];
    let parent = 0;
    for (let start = 0; start + BLOCK_TOKENS <= maxTokens; start += BLOCK_TOKENS) {
      const key = keyOf(parent, tokens, start);
      const block = this.#blocks.get(key);
      if (block === undefined) break;
      found.push([key, block]);
      parent = block.id;
    }
    // Deepest first, so that a parent is always more recent than its children and outlives them.
    for (const [key, block] of found.toReversed()) {
      this.#blocks.delete(key);
      this.#blocks.set(key, block);
    }
    return found.map(([, block]) => block.kv);
  }

  /**
   * Keeps the full blocks of the first `length` tokens.
   * @param read gives the block that begins at a token; called only for blocks that are not kept yet
   */
  insert(tokens: Int32Array, length: number, read: (start: number) => Float32Array): void {
    let parent = 0;
    for (let start = 0; start + BLOCK_TOKENS <= length; start += BLOCK_TOKENS) {
      const key = keyOf(parent, tokens, start);
      let block = this.#blocks.get(key);
      if (block === undefined) {
        block = { id: this.#nextId++, kv: read(start) };
        this.#blocks.set(key, block);
        this.#bytes += block.kv.byteLength;
      }
      parent = block.id;
    }
    this.#evict();
  }

  #evict(): void {
    for (const [key, block] of this.#blocks) {
      if (this.#bytes <= this.#maxBytes) return;
      this.#blocks.delete(key);
      this.#bytes -= block.kv.byteLength;
    }
  }
}

function keyOf(parent: number, tokens: Int32Array, start: number): string {
  return `${parent}:${tokens.subarray(start, start + BLOCK_TOKENS).join()}`;
}
