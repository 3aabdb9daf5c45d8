/** The embedded engine: graphs built in TypeScript, run by ONNX Runtime on the CPU in worker threads. */

import { FulgurError } from "#shared/errors.ts";
import type { Cotangent, Engine, EngineInfo, Sample, StepOptions, StepReport, TokenScores } from "../contract.ts";
import { mergeAdapter, writeAdapter, writeModel } from "../export.ts";
import type { OnnxEngineOptions } from "../options.ts";
import { Random } from "../random.ts";
import { withoutValueHead } from "../value-head.ts";
import { readCheckpoint, writeCheckpoint } from "./checkpoint.ts";
import {
  checkSamples,
  dealMicrobatches,
  emptyScores,
  type MicrobatchScores,
  type PlannedMicrobatch,
  planMicrobatches,
  scatterScores,
} from "./microbatch.ts";
import { checkFit, fill, tensorsOf } from "./parameters.ts";
import { ReplicaPool } from "./pool.ts";
import { prepare, type Prepared } from "./setup.ts";

/**
 * Opens a model folder for training.
 * @throws FulgurError ERR_CONFIG for options that make no sense; ERR_MODEL when the folder is no supported model
 */
export async function createOnnxEngine(options: OnnxEngineOptions): Promise<Engine> {
  const prepared = await prepare(options);
  return new OnnxEngine(prepared, new ReplicaPool(prepared.setups));
}

class OnnxEngine implements Engine {
  readonly info: EngineInfo;
  readonly #prepared: Prepared;
  readonly #pool: ReplicaPool;
  #random: Random;
  #steps = 0;
  #queue: Promise<unknown> = Promise.resolve();
  #closed = false;

  constructor(prepared: Prepared, pool: ReplicaPool) {
    this.#prepared = prepared;
    this.#pool = pool;
    this.#random = prepared.random;
    this.info = prepared.info;
  }

  score(samples: readonly Sample[]): Promise<TokenScores[]> {
    return this.#inTurn(() => this.#run("score", samples, null));
  }

  backward(samples: readonly Sample[], cotangents: readonly Cotangent[]): Promise<TokenScores[]> {
    return this.#inTurn(() => this.#run("backward", samples, cotangents));
  }

  step({ learningRate, maxGradNorm }: StepOptions): Promise<StepReport> {
    return this.#inTurn(async () => {
      const { store, setups } = this.#prepared;
      const squares = await this.#pool.reduce();
      const squareOf = new Map<string, number>();
      for (const [i, { owned }] of setups.entries()) {
        for (const [j, slot] of owned.entries()) squareOf.set(slot.name, squares[i]?.[j] ?? 0);
      }
      // Added in the parameters' own order, so that the sum does not depend on how they were dealt.
      const gradNorm = Math.sqrt(store.slots.reduce((sum, slot) => sum + (squareOf.get(slot.name) ?? 0), 0));
      if (!Number.isFinite(gradNorm)) {
        for (const gradient of store.gradients) gradient.fill(0);
        throw new FulgurError(
          "ERR_INTERNAL",
          `The gradient norm is ${gradNorm}, so no step was taken and the gradient was dropped. Load the last checkpoint, and lower the learning rate or look for cotangents that are not finite.`,
        );
      }
      const gradientScale = gradNorm > maxGradNorm ? maxGradNorm / (gradNorm + 1e-6) : 1;
      this.#steps += 1;
      await this.#pool.update({ learningRate, gradientScale, step: this.#steps });
      return { gradNorm };
    });
  }

  save(dir: string): Promise<void> {
    return this.#inTurn(async () => {
      const { store } = this.#prepared;
      await writeCheckpoint(dir, {
        identity: this.#prepared.identity,
        step: this.#steps,
        random: this.#random.state,
        weights: tensorsOf(store, store.weights),
        firstMoments: tensorsOf(store, store.firstMoments),
        secondMoments: tensorsOf(store, store.secondMoments),
      });
    });
  }

  load(dir: string): Promise<void> {
    return this.#inTurn(async () => {
      const { store } = this.#prepared;
      const checkpoint = await readCheckpoint(dir, this.#prepared.identity);
      const { weights, firstMoments, secondMoments } = checkpoint;
      for (const tensors of [weights, firstMoments, secondMoments]) checkFit(store, tensors);
      fill(store, store.weights, weights);
      fill(store, store.firstMoments, firstMoments);
      fill(store, store.secondMoments, secondMoments);
      for (const gradient of store.gradients) gradient.fill(0);
      this.#steps = checkpoint.step;
      this.#random = new Random(checkpoint.random);
    });
  }

  exportAdapter(dir: string): Promise<void> {
    return this.#inTurn(async () => {
      const { config, store } = this.#prepared;
      if (config.method.type !== "lora") {
        throw new FulgurError("ERR_CONFIG", "This engine trains full weights and has no adapter; use exportWeights.");
      }
      const adapter = withoutValueHead(tensorsOf(store, store.weights));
      await writeAdapter(dir, adapter, { method: config.method, base: config.modelDir });
    });
  }

  exportWeights(dir: string): Promise<void> {
    return this.#inTurn(async () => {
      const { config, store, frozen } = this.#prepared;
      const trained = withoutValueHead(tensorsOf(store, store.weights));
      const { method } = config;
      const layers = this.info.architecture.layers;
      const weights = method.type === "lora" ? mergeAdapter(frozen, trained, { method, layers }) : trained;
      await writeModel(dir, weights, config.modelDir);
    });
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#queue;
    await this.#pool.close();
  }

  async #run(
    type: "score" | "backward",
    samples: readonly Sample[],
    cotangents: readonly Cotangent[] | null,
  ): Promise<TokenScores[]> {
    const { config, setups } = this.#prepared;
    const { architecture, valueHead } = this.info;
    checkSamples(samples, { ...architecture, valueHead }, cotangents ?? undefined);
    const scores = emptyScores(samples, { valueHead });
    const plan = planMicrobatches(samples, cotangents, {
      maxTokens: config.maxTokensPerMicrobatch,
      replicas: setups.length,
    });
    const dealt = dealMicrobatches(plan, setups.length);
    const results = await this.#pool.scores(
      type,
      dealt.map((hand) => hand.map(({ microbatch }) => microbatch)),
    );
    for (const [i, hand] of dealt.entries()) {
      for (const [j, planned] of hand.entries()) scatterScores(scores, planned, scoresAt(results, planned, i, j));
    }
    return scores;
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    if (this.#closed) return Promise.reject(new FulgurError("ERR_INTERNAL", "The engine is closed; make a new one."));
    const turn = this.#queue.then(work);
    this.#queue = turn.catch(() => undefined);
    return turn;
  }
}

function scoresAt(
  results: readonly (readonly MicrobatchScores[])[],
  planned: PlannedMicrobatch,
  hand: number,
  position: number,
): MicrobatchScores {
  const scores = results[hand]?.[position];
  if (scores?.logprobs.length !== planned.sampleOf.length) {
    throw new FulgurError("ERR_INTERNAL", "An engine thread returned scores of another length than its batch.");
  }
  return scores;
}
