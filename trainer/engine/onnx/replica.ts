/**
 * One worker's share of an engine: it runs microbatches through its own sessions, adds up their gradients
 * in its own buffer, and updates the parameters dealt to it. It knows nothing of the other replicas but
 * their gradient buffers.
 */

import type { InferenceSession } from "onnxruntime-node";
import { FulgurError } from "#shared/errors.ts";
import { type Architecture, ropeTables } from "../../model/architecture.ts";
import type { Tensor as HostTensor } from "../../model/safetensors.ts";
import type { OptimizerConfig } from "../options.ts";
import { adamw } from "./adamw.ts";
import { rateFactor } from "../value-head.ts";
import { ATTENTION_BLOCKS, buildDecoderGraph, type DecoderGraph, HEAD_BLOCKS, type Pass } from "./decoder-graph.ts";
import type { Microbatch, MicrobatchScores } from "./microbatch.ts";
import { Muon, usesMuon } from "./muon.ts";
import { type ParameterSlot, type ParameterStore, view } from "./parameters.ts";
import { openSession, Tensor } from "./runtime.ts";

/** What a replica is made of; its large buffers are shared with the others. */
export interface ReplicaSetup {
  readonly architecture: Architecture;
  readonly temperature: number;
  readonly threads: number;
  readonly optimizer: OptimizerConfig;
  readonly loraScale: number | null;
  readonly store: ParameterStore;
  readonly frozen: ReadonlyMap<string, HostTensor>;
  readonly frozenAsInputs: boolean;
  /** Batches whose activations would take about more go through a lean graph. */
  readonly maxActivationBytes: number;
  /** Which of the store's gradient buffers is this replica's. */
  readonly index: number;
  /** Parameters whose sums and updates are this replica's work. */
  readonly owned: readonly ParameterSlot[];
}

/** One step's numbers, the same for every replica. */
export interface UpdateOptions {
  readonly learningRate: number;
  readonly gradientScale: number;
  /** 1 for the first. */
  readonly step: number;
}

interface Loaded {
  readonly session: InferenceSession;
  readonly graph: DecoderGraph;
}

/** Causal mask and block bounds of one batch length. */
interface AttentionFeeds {
  readonly mask: Tensor;
  readonly bounds: Tensor;
}

const EMBEDDING = "model.embed_tokens.weight";
/** Large enough that its exponential is 0 in float32, small enough that sums stay finite. */
const HIDDEN = -1e30;

/** One worker's sessions and buffers. */
export class Replica {
  readonly #setup: ReplicaSetup;
  readonly #passes = new Map<string, Promise<Loaded>>();
  readonly #weights: Readonly<Record<string, Tensor>>;
  readonly #gradients: ReadonlyMap<string, Float32Array>;
  readonly #attentions = new Map<number, AttentionFeeds>();
  readonly #muon: Muon;
  /** Whether nothing was added to this replica's gradients since they were last zeroed. */
  #clean = true;
  #rope: { readonly positions: number; readonly cos: Tensor; readonly sin: Tensor } | null = null;

  constructor(setup: ReplicaSetup) {
    this.#setup = setup;
    const { slots, weights, gradients } = setup.store;
    const own = gradients[setup.index];
    if (own === undefined) throw new FulgurError("ERR_INTERNAL", `Replica ${setup.index} has no gradient buffer.`);
    const inputs = setup.frozenAsInputs ? [...setup.frozen] : [];
    this.#weights = Object.fromEntries([
      ...slots.map((slot) => [slot.name, new Tensor("float32", view(weights, slot), slot.shape)] as const),
      ...inputs.map(([name, { shape, data }]) => [name, new Tensor("float32", data, shape)] as const),
    ]);
    this.#gradients = new Map(slots.map((slot) => [slot.name, view(own, slot)]));
    this.#muon = new Muon(setup.threads);
  }

  /** Opens the session of a pass ahead of its first use. */
  async warm(pass: Pass): Promise<void> {
    await this.#load(pass);
  }

  /** Scores the targets of one batch. */
  async score(microbatch: Microbatch): Promise<MicrobatchScores> {
    const lean = this.#isLarge(microbatch);
    const { session, graph } = await this.#load("score", lean);
    return scoresOf(await session.run(this.#feeds(microbatch, lean)), graph);
  }

  /** Adds one batch's gradient to this replica's buffer. */
  async backward(microbatch: Microbatch): Promise<MicrobatchScores> {
    const { batch, time, tokens, dLogprobs, dEntropy, dValues } = microbatch;
    const lean = this.#isLarge(microbatch);
    const { session, graph } = await this.#load(dEntropy === null ? "backward" : "backward+entropy", lean);
    const feeds = this.#feeds(microbatch, lean);
    feeds["dLogprobs"] = new Tensor("float32", dLogprobs, [dLogprobs.length, 1]);
    if (dEntropy !== null) feeds["dEntropy"] = new Tensor("float32", dEntropy, [dEntropy.length, 1]);
    if (graph.values !== null) feeds["dValues"] = new Tensor("float32", dValues, [dValues.length, 1]);
    const results = await session.run(feeds);
    for (const [name, output] of graph.gradients) {
      const sum = this.#gradients.get(name);
      if (sum === undefined) continue;
      const gradient = floats(results, output);
      if (this.#clean) sum.set(gradient);
      else addTo(sum, gradient);
      release(gradient);
    }
    this.#clean = false;
    const embedding = this.#gradients.get(EMBEDDING);
    if (graph.embedded !== null && embedding !== undefined) {
      // ScatterND's additions race on repeated tokens; this sum is exact in its order and cheap.
      const rows = floats(results, graph.embedded);
      addRows(embedding, rows, tokens.subarray(0, batch * time), this.#setup.architecture.width);
      release(rows);
    }
    return scoresOf(results, graph);
  }

  /**
   * Adds the replicas' gradients of the owned parameters into the first buffer.
   * @returns the sum of squares of each owned parameter's gradient, in the order of `owned`
   */
  reduce(): Float64Array {
    const { owned, store } = this.#setup;
    const [total, ...others] = store.gradients;
    if (total === undefined) return new Float64Array(0);
    return Float64Array.from(owned, (slot) => {
      const sum = view(total, slot);
      for (const other of others) addTo(sum, view(other, slot));
      return sumOfSquares(sum);
    });
  }

  /** Moves the owned parameters against their reduced gradient and zeroes their gradients everywhere. */
  async update({ learningRate, gradientScale, step }: UpdateOptions): Promise<void> {
    const { architecture, owned, store, optimizer } = this.#setup;
    const [total] = store.gradients;
    if (total === undefined) return;
    for (const slot of owned) {
      const arrays = {
        weights: view(store.weights, slot),
        gradients: view(total, slot),
        firstMoments: view(store.firstMoments, slot),
        secondMoments: view(store.secondMoments, slot),
      };
      const weightDecay = slot.shape.length > 1 ? optimizer.weightDecay : 0;
      if (optimizer.type === "muon" && usesMuon(slot)) {
        const { momentum } = optimizer;
        await this.#muon.step(arrays, slot.shape, { learningRate, momentum, weightDecay, gradientScale });
      } else {
        const rate = optimizer.type === "muon" ? learningRate * optimizer.adamwRate : learningRate;
        const { beta1, beta2, epsilon } = optimizer;
        const own = rate * rateFactor(slot.name, architecture.width);
        adamw(arrays, { learningRate: own, beta1, beta2, epsilon, weightDecay, step, gradientScale });
      }
      for (const gradient of store.gradients) view(gradient, slot).fill(0);
    }
    this.#clean = true;
  }

  /** By its sizes alone, so that a run that is resumed goes through the same graphs. */
  #isLarge({ batch, time, rows }: Microbatch): boolean {
    const { architecture, maxActivationBytes } = this.#setup;
    return rows.length >= HEAD_BLOCKS && activationBytes(architecture, batch, time, rows.length) > maxActivationBytes;
  }

  #load(pass: Pass, lean = false): Promise<Loaded> {
    const key = lean ? `${pass}, lean` : pass;
    let loaded = this.#passes.get(key);
    if (loaded === undefined) {
      const { architecture, temperature, store, frozen, frozenAsInputs, loraScale, threads } = this.#setup;
      const trained = new Map(store.slots.map(({ name, shape }) => [name, shape]));
      const graph = buildDecoderGraph({
        architecture,
        pass,
        temperature,
        trained,
        frozen,
        frozenAsInputs,
        lean,
        loraScale,
      });
      loaded = openSession(graph.bytes, threads).then((session) => ({ session, graph: { ...graph, bytes: EMPTY } }));
      this.#passes.set(key, loaded);
    }
    return loaded;
  }

  #feeds({ batch, time, tokens, rows, targets }: Microbatch, lean: boolean): Record<string, Tensor> {
    const { cos, sin } = this.#rotations(time);
    return {
      ...this.#weights,
      tokens: new Tensor("int64", tokens, [batch, time]),
      rows: new Tensor("int64", rows, [rows.length, 1]),
      targets: new Tensor("int64", targets, [targets.length, 1]),
      ...this.#attention(time),
      ...(lean ? { headBounds: new Tensor("int64", evenBounds(rows.length, HEAD_BLOCKS), [HEAD_BLOCKS + 1]) } : {}),
      cos,
      sin,
    };
  }

  #rotations(time: number): { readonly cos: Tensor; readonly sin: Tensor } {
    if (this.#rope === null || this.#rope.positions < time) {
      const { architecture } = this.#setup;
      const positions = Math.min(architecture.contextTokens, 2 ** Math.ceil(Math.log2(Math.max(time, 64))));
      const { cos, sin } = ropeTables(architecture, positions);
      const shape = [positions, architecture.headSize / 2];
      this.#rope = { positions, cos: new Tensor("float32", cos, shape), sin: new Tensor("float32", sin, shape) };
    }
    return this.#rope;
  }

  #attention(time: number): AttentionFeeds {
    let feeds = this.#attentions.get(time);
    if (feeds === undefined) {
      const { heads, kvHeads } = this.#setup.architecture;
      const group = heads / kvHeads;
      const rows = group * time;
      const mask = new Float32Array(rows * time);
      for (let row = 0; row < rows; row++)
        mask.fill(HIDDEN, row * time + Math.floor(row / group) + 1, (row + 1) * time);
      feeds = {
        mask: new Tensor("float32", mask, [rows, time]),
        bounds: new Tensor("int64", evenBounds(time, ATTENTION_BLOCKS), [ATTENTION_BLOCKS + 1]),
      };
      // A few lengths recur within a batch; keeping every length ever seen would grow without end.
      if (this.#attentions.size >= 32) this.#attentions.clear();
      this.#attentions.set(time, feeds);
    }
    return feeds;
  }
}

const EMPTY = new Uint8Array();

/** Where `blocks` even parts of a length begin, and its end. */
function evenBounds(length: number, blocks: number): BigInt64Array {
  return BigInt64Array.from({ length: blocks + 1 }, (_, i) => BigInt(Math.round((i * length) / blocks)));
}

/**
 * About what a backward pass keeps of its forward pass: in each layer some twelve arrays of the width and four of the feed-forward,
 * the causal half of attention's scores twice, and four arrays of logits.
 */
function activationBytes(a: Architecture, batch: number, time: number, targets: number): number {
  const perToken = 12 * a.width + 4 * a.feedForward;
  const attention = 1.2 * a.heads * time;
  return 4 * (a.layers * batch * time * (perToken + attention) + 4 * targets * a.vocab);
}

function scoresOf(results: InferenceSession.OnnxValueMapType, graph: DecoderGraph): MicrobatchScores {
  return {
    logprobs: floats(results, graph.logprobs),
    entropy: floats(results, graph.entropy),
    ...(graph.values === null ? {} : { values: floats(results, graph.values) }),
  };
}

function floats(results: InferenceSession.OnnxValueMapType, name: string): Float32Array {
  const data = results[name]?.data;
  if (!(data instanceof Float32Array))
    throw new FulgurError("ERR_INTERNAL", `The graph gave no float output "${name}".`);
  return data;
}

/** Frees an output that was used up. Left to the collector, each run would write into memory fresh from the system. */
function release({ buffer }: Float32Array): void {
  if (buffer instanceof ArrayBuffer) buffer.transfer(0);
}

function addTo(sum: Float32Array, terms: Float32Array): void {
  for (let i = 0; i < sum.length; i++) sum[i] = (sum[i] ?? 0) + (terms[i] ?? 0);
}

function addRows(sum: Float32Array, rows: Float32Array, tokens: BigInt64Array, width: number): void {
  for (let n = 0; n < tokens.length; n++) {
    const to = Number(tokens[n]) * width;
    const from = n * width;
    for (let i = 0; i < width; i++) sum[to + i] = (sum[to + i] ?? 0) + (rows[from + i] ?? 0);
  }
}

function sumOfSquares(values: Float32Array): number {
  let sum = 0;
  for (let i = 0; i < values.length; i++) sum += (values[i] ?? 0) ** 2;
  return sum;
}
