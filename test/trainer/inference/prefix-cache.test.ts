import { expect, test } from "vitest";
import { BLOCK_TOKENS, PrefixCache } from "../../../trainer/inference/prefix-cache.ts";

const BLOCK_BYTES = 8 * 4;

test("a block is found by its whole prefix and not by its own tokens", () => {
  const cache = new PrefixCache(1e6);
  const tokens = sequence([1, 2, 3]);
  cache.insert(tokens, tokens.length, block);
  expect(starts(cache, tokens)).toEqual([0, BLOCK_TOKENS, 2 * BLOCK_TOKENS]);
  expect(starts(cache, sequence([1, 2, 4]))).toEqual([0, BLOCK_TOKENS]);
  expect(starts(cache, sequence([2, 3]))).toEqual([]);
});

test("only whole blocks are kept and given, and none beyond the bound asked for", () => {
  const cache = new PrefixCache(1e6);
  const tokens = sequence([1, 2]);
  cache.insert(tokens, 2 * BLOCK_TOKENS - 1, block);
  expect(starts(cache, tokens)).toEqual([0]);
  cache.insert(tokens, 2 * BLOCK_TOKENS, block);
  expect(cache.lookup(tokens, 2 * BLOCK_TOKENS - 1)).toHaveLength(1);
});

test("what is known is not read again", () => {
  const cache = new PrefixCache(1e6);
  const read: number[] = [];
  const reading = (start: number): Float32Array => {
    read.push(start);
    return block(start);
  };
  cache.insert(sequence([1, 2]), 2 * BLOCK_TOKENS, reading);
  cache.insert(sequence([1, 3]), 2 * BLOCK_TOKENS, reading);
  expect(read).toEqual([0, BLOCK_TOKENS, BLOCK_TOKENS]);
  expect(cache.bytes).toBe(3 * BLOCK_BYTES);
});

test("beyond its bytes the prefix used least recently goes, children before parents", () => {
  const cache = new PrefixCache(3 * BLOCK_BYTES);
  cache.insert(sequence([1, 2]), 2 * BLOCK_TOKENS, block);
  cache.lookup(sequence([1, 2]), 1e6);
  cache.insert(sequence([5]), BLOCK_TOKENS, block);
  cache.insert(sequence([6]), BLOCK_TOKENS, block);
  expect(cache.bytes).toBe(3 * BLOCK_BYTES);
  expect(starts(cache, sequence([1, 2]))).toEqual([0]);
  expect(starts(cache, sequence([6]))).toEqual([0]);
});

/** Blocks of equal tokens. */
function sequence(values: readonly number[]): Int32Array {
  return Int32Array.from(values.flatMap((value) => Array.from({ length: BLOCK_TOKENS }, () => value)));
}

function block(start: number): Float32Array {
  return new Float32Array(8).fill(start);
}

function starts(cache: PrefixCache, tokens: Int32Array): number[] {
  return cache.lookup(tokens, tokens.length).map((kv) => kv[0] ?? NaN);
}
