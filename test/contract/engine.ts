/** What every engine promises, as tests. An implementation's test file calls `engineContract` with a way to make one. */

import { randomInt } from "node:crypto";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import type { Cotangent, Engine, Sample, TokenScores } from "../../trainer/engine/contract.ts";

/** How the suite makes engines; each call starts from the same weights. */
export interface EngineFactory {
  /** An engine of a tiny model with at least 16 tokens of vocabulary and 32 of context. */
  readonly make: (method: "lora" | "full") => Promise<Engine>;
  /** How far scores of the same sample in other batches may be apart; 0 where sums do not depend on the batch. */
  readonly batchTolerance: number;
}

/** Runs the contract on one implementation. */
export function engineContract(name: string, { make, batchTolerance }: EngineFactory): void {
  describe(`the ${name} engine`, () => {
    let dir = "";
    const open: Engine[] = [];
    beforeAll(async () => {
      dir = await mkdtemp(join(tmpdir(), "fulgur-engine-"));
    });
    afterEach(async () => {
      await Promise.all(open.splice(0).map((engine) => engine.close()));
    });
    afterAll(async () => {
      await rm(dir, { recursive: true, force: true });
    });
    const engineOf = async (method: "lora" | "full"): Promise<Engine> => {
      const engine = await make(method);
      open.push(engine);
      return engine;
    };
    const fresh = (): string => join(dir, String(randomInt(2 ** 47)));

    test("scores masked tokens only, with log-probabilities and entropies that are possible", async () => {
      const engine = await engineOf("full");
      const samples = [sampleOf(9, [1, 4, 8]), sampleOf(3, [])];
      const [first, second] = await engine.score(samples);
      expect(indicesOf(first?.logprobs, (value) => value < 0)).toEqual([1, 4, 8]);
      expect(indicesOf(first?.entropy, (value) => value > 0)).toEqual([1, 4, 8]);
      expect(Math.max(...(first?.entropy ?? []))).toBeLessThanOrEqual(Math.log(engine.info.architecture.vocab) + 1e-4);
      expect([...(second?.logprobs ?? [])]).toEqual([0, 0, 0]);
    });

    test("log-probabilities of all tokens at one position sum to one", async () => {
      const engine = await engineOf("full");
      const samples = Array.from({ length: engine.info.architecture.vocab }, (_, token) => ({
        tokens: Int32Array.of(3, 1, token),
        lossMask: Uint8Array.of(0, 0, 1),
      }));
      const scores = await engine.score(samples);
      const total = scores.reduce((sum, { logprobs }) => sum + Math.exp(logprobs[2] ?? NaN), 0);
      expect(total).toBeCloseTo(1, 4);
    });

    test("a token's score does not depend on what comes after it or beside it", async () => {
      const engine = await engineOf("full");
      const long = sampleOf(20, [2, 5, 19]);
      const short: Sample = { tokens: long.tokens.slice(0, 6), lossMask: long.lossMask.slice(0, 6) };
      const [alone] = await engine.score([short]);
      const [, , together] = await engine.score([long, sampleOf(13, [12]), short, sampleOf(2, [1])]);
      expect(apart(together, alone)).toBeLessThanOrEqual(batchTolerance);
    });

    test("backward gives the scores that score gives, before and after it", async () => {
      const engine = await engineOf("lora");
      const samples = [sampleOf(12, [3, 4, 11]), sampleOf(5, [4])];
      const before = await engine.score(samples);
      const during = await engine.backward(samples, samples.map(pullUp));
      const after = await engine.score(samples);
      for (const [i, scores] of before.entries()) {
        expect(apart(during[i], scores)).toBeLessThanOrEqual(batchTolerance);
        expect(after[i]).toEqual(scores);
      }
    });

    test.each(["lora", "full"] as const)("steps make pulled tokens likelier: %s", async (method) => {
      const engine = await engineOf(method);
      const samples = [sampleOf(8, [3, 6, 7])];
      const before = sumOf(await engine.score(samples));
      for (let i = 0; i < 5; i++) {
        await engine.backward(samples, samples.map(pullUp));
        const { gradNorm } = await engine.step({ learningRate: 0.02, maxGradNorm: 1 });
        expect(gradNorm).toBeGreaterThan(0);
      }
      expect(sumOf(await engine.score(samples))).toBeGreaterThan(before + 0.5);
    });

    test("an entropy cotangent raises entropy", async () => {
      const engine = await engineOf("full");
      const samples = [sampleOf(8, [3, 6, 7])];
      const entropy = async (): Promise<number> =>
        (await engine.score(samples)).reduce((sum, scores) => sum + sumUp(scores.entropy), 0);
      const before = await entropy();
      await engine.backward(
        samples,
        samples.map(({ tokens }) => ({
          dLogprobs: new Float32Array(tokens.length),
          dEntropy: new Float32Array(tokens.length).fill(-1),
        })),
      );
      await engine.step({ learningRate: 0.003, maxGradNorm: Infinity });
      expect(await entropy()).toBeGreaterThan(before);
    });

    test("gradients add up over calls, and a step uses them up", async () => {
      const engine = await engineOf("full");
      const samples = [sampleOf(8, [3, 6, 7]), sampleOf(6, [5])];
      const still = { learningRate: 0, maxGradNorm: Infinity };
      await engine.backward(samples, samples.map(pullUp));
      const { gradNorm: together } = await engine.step(still);
      for (const sample of samples) await engine.backward([sample], [pullUp(sample)]);
      const { gradNorm: apart } = await engine.step(still);
      await engine.backward(samples, samples.map(pullUp));
      await engine.backward(samples, samples.map(pullUp));
      const { gradNorm: twice } = await engine.step(still);
      // Norms of float32 gradients summed in another order.
      expect(apart / together).toBeCloseTo(1, 4);
      expect(twice / together).toBeCloseTo(2, 4);
      expect((await engine.step(still)).gradNorm).toBe(0);
    });

    test.each(["lora", "full"] as const)("a resumed run goes on bit for bit: %s", async (method) => {
      const samples = [sampleOf(8, [3, 6, 7]), sampleOf(15, [5, 9])];
      const advance = async (engine: Engine): Promise<number> => {
        await engine.backward(samples, samples.map(pullUp));
        return (await engine.step({ learningRate: 0.01, maxGradNorm: 0.5 })).gradNorm;
      };
      const through = await engineOf(method);
      await advance(through);
      await advance(through);
      const at = fresh();
      await through.save(at);
      const norms = [await advance(through), await advance(through)];
      const resumed = await engineOf(method);
      await resumed.backward(samples, samples.map(pullUp));
      await resumed.load(at);
      expect([await advance(resumed), await advance(resumed)]).toEqual(norms);
      const [a, b] = [await through.score(samples), await resumed.score(samples)];
      expect(b).toEqual(a);
    });

    test("a torn, altered or foreign checkpoint is refused in one sentence, and changes nothing", async () => {
      const engine = await engineOf("lora");
      const samples = [sampleOf(8, [3, 6, 7])];
      const before = await engine.score(samples);
      await expect(engine.load(fresh())).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });

      const altered = fresh();
      await engine.save(altered);
      const [file] = (await readdir(altered))
        .filter((entry) => !entry.endsWith(".json"))
        .toSorted()
        .toReversed();
      const path = join(altered, file ?? "");
      const bytes = await readFile(path);
      bytes[bytes.length - 1] = (bytes.at(-1) ?? 0) ^ 1;
      await writeFile(path, bytes);
      await expect(engine.load(altered)).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });
      await writeFile(path, bytes.subarray(0, bytes.length >> 1));
      await expect(engine.load(altered)).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });

      const foreign = fresh();
      const other = await engineOf("full");
      await other.save(foreign);
      await expect(engine.load(foreign)).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });
      const [after] = await engine.score(samples);
      expect(after).toEqual(before[0]);
    });

    test("what cannot be trained on is refused by name", async () => {
      const engine = await engineOf("full");
      const { vocab } = engine.info.architecture;
      const good = sampleOf(4, [1]);
      const bad: [Sample, RegExp][] = [
        [{ tokens: new Int32Array(0), lossMask: new Uint8Array(0) }, /no tokens/],
        [{ tokens: Int32Array.of(1, 2), lossMask: Uint8Array.of(0) }, /loss mask has 1 entries for 2 tokens/],
        [{ tokens: Int32Array.of(1, vocab), lossMask: Uint8Array.of(0, 1) }, /outside the vocabulary/],
        [{ tokens: Int32Array.of(1, -1), lossMask: Uint8Array.of(0, 1) }, /outside the vocabulary/],
        [{ tokens: Int32Array.of(1, 2), lossMask: Uint8Array.of(1, 1) }, /first token cannot be a target/],
      ];
      for (const [sample, message] of bad) {
        await expect(engine.score([good, sample])).rejects.toMatchObject({
          code: "ERR_SHAPE",
          message: expect.stringMatching(message),
        });
      }
      await expect(engine.backward([good], [])).rejects.toMatchObject({ code: "ERR_SHAPE" });
      await expect(engine.backward([good], [{ dLogprobs: new Float32Array(3) }])).rejects.toMatchObject({
        code: "ERR_SHAPE",
      });
      await expect(engine.exportAdapter(fresh())).rejects.toMatchObject({ code: "ERR_CONFIG" });
    });

    test("a gradient that is not finite takes no step", async () => {
      const engine = await engineOf("full");
      const samples = [sampleOf(8, [3, 6, 7])];
      const [before] = await engine.score(samples);
      await engine.backward(samples, [{ dLogprobs: new Float32Array(8).fill(NaN) }]);
      await expect(engine.step({ learningRate: 0.1, maxGradNorm: 1 })).rejects.toThrow(/gradient norm is NaN/);
      const [after] = await engine.score(samples);
      expect(after).toEqual(before);
      // The bad gradient is gone.
      await engine.backward(samples, samples.map(pullUp));
      expect((await engine.step({ learningRate: 0, maxGradNorm: 1 })).gradNorm).toBeGreaterThan(0);
    });

    test("nothing to do is no error", async () => {
      const engine = await engineOf("full");
      expect(await engine.score([])).toEqual([]);
      expect(await engine.backward([], [])).toEqual([]);
      expect((await engine.step({ learningRate: 0.1, maxGradNorm: 1 })).gradNorm).toBe(0);
    });

    test("a closed engine says so", async () => {
      const engine = await make("full");
      await engine.close();
      await expect(engine.score([sampleOf(4, [1])])).rejects.toThrow(/closed/);
    });
  });
}

/** A sample of fixed tokens below 16 whose targets are at `positions`. */
export function sampleOf(length: number, positions: readonly number[]): Sample {
  return {
    tokens: Int32Array.from({ length }, (_, i) => (7 * i + length) % 16),
    lossMask: Uint8Array.from({ length }, (_, i) => Number(positions.includes(i))),
  };
}

/** The cotangent of L = −Σ logprob. */
function pullUp({ tokens }: Sample): Cotangent {
  return { dLogprobs: new Float32Array(tokens.length).fill(-1) };
}

/** The largest difference of any score; Infinity where the lengths differ. */
function apart(actual: TokenScores | undefined, expected: TokenScores | undefined): number {
  let largest = 0;
  for (const key of ["logprobs", "entropy"] as const) {
    const [left, right] = [actual?.[key], expected?.[key]];
    if (left === undefined || left.length !== right?.length) return Infinity;
    for (const [t, value] of left.entries()) largest = Math.max(largest, Math.abs(value - (right[t] ?? NaN)));
  }
  return largest;
}

function indicesOf(values: Float32Array | undefined, holds: (value: number) => boolean): number[] {
  return [...(values ?? []).entries()].filter(([, value]) => holds(value)).map(([i]) => i);
}

function sumUp(values: Float32Array): number {
  return values.reduce((sum, value) => sum + value, 0);
}

function sumOf(scores: readonly TokenScores[]): number {
  return scores.reduce((sum, { logprobs }) => sum + sumUp(logprobs), 0);
}
