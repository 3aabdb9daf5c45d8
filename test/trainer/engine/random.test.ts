import { expect, test } from "vitest";
import { Random } from "../../../trainer/engine/random.ts";

const draw = (random: Random, count: number): number[] => Array.from({ length: count }, () => random.next());

test("xoshiro128** gives its reference stream", () => {
  // State 1, 2, 3, 4: the first outputs of the authors' C code are 11520, 0, 5927040, 70819200.
  const random = new Random([1, 2, 3, 4]);
  expect(draw(random, 4).map((value) => value * 2 ** 32)).toEqual([11520, 0, 5927040, 70819200]);
});

test("a saved state goes on with the same stream, and seeds give streams of their own", () => {
  const random = Random.seeded(7);
  draw(random, 5);
  const resumed = new Random(random.state);
  expect(draw(resumed, 20)).toEqual(draw(random, 20));
  expect(draw(Random.seeded(7), 5)).toEqual(draw(Random.seeded(7), 5));
  expect(draw(Random.seeded(8), 5)).not.toEqual(draw(Random.seeded(7), 5));
});

test("numbers are uniform in [0, 1)", () => {
  const values = draw(Random.seeded(1), 20_000);
  const counts = Array.from({ length: 10 }, (_, i) => values.filter((value) => Math.floor(value * 10) === i).length);
  expect(counts.reduce((sum, count) => sum + count)).toBe(20_000);
  // Binomial(20000, 0.1) has a standard deviation of 42; the seed is fixed, so this cannot flake.
  for (const count of counts) expect(Math.abs(count - 2000)).toBeLessThan(5 * 42);
});
