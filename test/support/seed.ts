/** Random choices of a test that can be had again: the seed is printed, and FULGUR_FAULT_SEED sets it. */
export interface Seeded {
  readonly seed: number;
  /** In [0, 1). */
  readonly random: () => number;
  /** A whole number in [0, below). */
  readonly below: (below: number) => number;
  readonly pick: <T>(from: readonly [T, ...T[]]) => T;
  /** The same things in another order. */
  readonly shuffled: <T>(things: readonly T[]) => T[];
}

/** @param name of the test file, for the printed line */
export function seeded(name: string): Seeded {
  const seed = setting("FULGUR_FAULT_SEED", Math.floor(Math.random() * 2 ** 31), { min: 0, max: 2 ** 31 - 1 });
  console.log(`${name}: seed ${seed} (FULGUR_FAULT_SEED=${seed} repeats its choices)`);
  const random = mulberry32(seed);
  const below = (limit: number): number => Math.floor(random() * limit);
  return {
    seed,
    random,
    below,
    pick: (from) => from[below(from.length)] ?? from[0],
    shuffled(things) {
      const left = [...things];
      return Array.from({ length: left.length }, () => left.splice(below(left.length), 1)).flat();
    },
  };
}

/**
 * A whole number from the environment.
 * @throws Error when it is none, or out of bounds
 */
export function setting(name: string, otherwise: number, { min, max }: { readonly min: number; readonly max: number }) {
  const text = process.env[name];
  if (text === undefined || text === "") return otherwise;
  const value = Number(text);
  if (Number.isInteger(value) && value >= min && value <= max) return value;
  throw new Error(`${name} takes a whole number from ${min} to ${max}, got ${text}`);
}

/** A small generator with 32 bits of state; what matters is only that it can be repeated. */
function mulberry32(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
