/** A seeded random source whose state can be saved: xoshiro128** (Blackman and Vigna 2018, arXiv:1805.01407). */

/** The four words of a generator's state. */
export type RandomState = readonly [number, number, number, number];

/** A stream of uniform numbers. */
export class Random {
  #a: number;
  #b: number;
  #c: number;
  #d: number;

  /** @param state from `Random.seeded` or an earlier `state` */
  constructor(state: RandomState) {
    [this.#a, this.#b, this.#c, this.#d] = state;
  }

  /** A generator whose stream is fixed by a whole number; neighbouring seeds give unrelated streams (splitmix32). */
  static seeded(seed: number): Random {
    let word = seed >>> 0;
    const mix = (): number => {
      word = (word + 0x9e3779b9) >>> 0;
      let z = word;
      z = Math.imul(z ^ (z >>> 16), 0x85ebca6b);
      z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
      return (z ^ (z >>> 16)) >>> 0;
    };
    return new Random([mix(), mix(), mix(), mix()]);
  }

  /** Where the stream is now. */
  get state(): RandomState {
    return [this.#a, this.#b, this.#c, this.#d];
  }

  /** The next number, uniform in [0, 1), with 32 random bits. */
  next(): number {
    const result = Math.imul(rotateLeft(Math.imul(this.#b, 5), 7), 9) >>> 0;
    const t = this.#b << 9;
    this.#c ^= this.#a;
    this.#d ^= this.#b;
    this.#b ^= this.#c;
    this.#a ^= this.#d;
    this.#c ^= t;
    this.#d = rotateLeft(this.#d, 11);
    return result / 2 ** 32;
  }
}

function rotateLeft(word: number, bits: number): number {
  return (word << bits) | (word >>> (32 - bits));
}
