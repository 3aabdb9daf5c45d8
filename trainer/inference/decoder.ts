/**
 * One policy version being sampled from: continuous batching over one ONNX Runtime session. A sequence is read in
 * chunks into a staging buffer, then joins the batch, in which every step gives each sequence one token.
 * It knows token ids and probabilities; text, tools and HTTP are above it.
 *
 * A sequence's tokens depend on nothing but its own: chunks begin at fixed positions, rows of a batch are computed
 * independently, and draws come from the sequence's own seed.
 */

import { type InferenceSession, Tensor } from "onnxruntime-node";
import type { Architecture } from "../model/architecture.ts";
import { INPUT, MASKED, OUTPUT, pastKey, pastValue } from "./decode-io.ts";
import { KvBuffer, kvShapeOf } from "./kv-buffer.ts";
import { type LogitAdjustments, LogitRules, NO_ADJUSTMENTS } from "./logit-rules.ts";
import { BLOCK_TOKENS, PrefixCache } from "./prefix-cache.ts";
import { type Alternative, drawToken, type SamplingOptions, topAlternatives, uniformAt } from "./sampling.ts";
import type { TokenMatcher } from "./token-matcher.ts";

/** What to sample. */
export interface SequenceRequest {
  readonly id: number;
  /** Prompt token ids, at least one. */
  readonly prompt: Int32Array;
  readonly maxTokens: number;
  readonly sampling: SamplingOptions;
  /** What is changed about the distribution before a token is drawn; null for nothing. */
  readonly adjustments: LogitAdjustments | null;
  /** Ids that end the answer; the one that did is part of the sampled ids. */
  readonly stopIds: readonly number[];
  /** Alternatives to report for each token; 0 for none. */
  readonly topLogprobs: number;
}

/** One sampled token of one sequence. */
export interface SampledToken {
  readonly id: number;
  readonly token: number;
  readonly logprob: number;
  readonly alternatives: readonly Alternative[] | null;
  /** Set on the last one: a stop id was drawn or nothing may follow, or maxTokens were drawn. */
  readonly finish: "stop" | "length" | null;
  /** Prompt tokens that the prefix cache spared; set on the first one. */
  readonly cachedTokens: number | null;
}

/** Bounds of a decoder. */
export interface DecoderOptions {
  /** Sequences in the batch; further ones wait. */
  readonly maxSequences: number;
  readonly prefixCacheBytes: number;
  /** Prompt tokens read between two steps of the batch: more fills the batch sooner, less keeps streams even. */
  readonly prefillTokensPerStep: number;
}

/** Gets each token as it is drawn. */
export type Emit = (token: SampledToken) => void;

interface Sequence {
  readonly request: SequenceRequest;
  /** Null: tokens are drawn from what the model says. */
  readonly rules: LogitRules | null;
  /** Null: any token may come next. */
  readonly matcher: TokenMatcher | null;
  /** Prompt and answer; the first `length` are valid. */
  readonly tokens: Int32Array;
  length: number;
  /** Positions whose keys and values are in a buffer; behind `length` by one while sampling. */
  cached: number;
  /** Positions that came from the prefix cache. */
  reused: number;
}

/**
 * Samples sequences from one version's weights. `step` blocks the thread while the runtime works, and nothing else
 * may be called until it has resolved.
 */
export class Decoder {
  readonly #session: InferenceSession;
  readonly #architecture: Architecture;
  readonly #options: DecoderOptions;
  readonly #prefixes: PrefixCache;
  readonly #batch: KvBuffer;
  readonly #staging: KvBuffer;
  readonly #waiting: Sequence[] = [];
  /** Row b of the batch buffer belongs to #rows[b]. */
  readonly #rows: Sequence[] = [];
  #reading: Sequence | null = null;

  constructor(session: InferenceSession, architecture: Architecture, options: DecoderOptions) {
    this.#session = session;
    this.#architecture = architecture;
    this.#options = options;
    this.#prefixes = new PrefixCache(options.prefixCacheBytes);
    this.#batch = new KvBuffer(kvShapeOf(architecture));
    this.#staging = new KvBuffer(kvShapeOf(architecture));
  }

  /** Sequences that are being read or sampled. */
  get running(): number {
    return this.#rows.length + (this.#reading === null ? 0 : 1);
  }

  /** Sequences that have not begun. */
  get waiting(): number {
    return this.#waiting.length;
  }

  /** Queues a sequence. @param matcher what its answer must be like */
  submit(request: SequenceRequest, matcher: TokenMatcher | null = null): void {
    const tokens = new Int32Array(request.prompt.length + request.maxTokens);
    tokens.set(request.prompt);
    const { adjustments, sampling } = request;
    const isPlain = adjustments === null && matcher === null;
    const rules = isPlain ? null : new LogitRules(adjustments ?? NO_ADJUSTMENTS, sampling.temperature);
    this.#waiting.push({ request, rules, matcher, tokens, length: request.prompt.length, cached: 0, reused: 0 });
  }

  /** Forgets a sequence wherever it is; its row is free at once. Unknown ids are ignored. */
  cancel(id: number): void {
    const waiting = this.#waiting.findIndex(({ request }) => request.id === id);
    if (waiting >= 0) this.#waiting.splice(waiting, 1);
    if (this.#reading?.request.id === id) this.#reading = null;
    const row = this.#rows.findIndex(({ request }) => request.id === id);
    if (row >= 0) this.#leave(row);
  }

  /**
   * Reads some prompt tokens, then samples one token for each sequence of the batch.
   * @param isInterrupted asked between runs of the graph; once it says so the step ends, and goes on with the next
   * @returns false when there was nothing to do
   */
  async step(emit: Emit, isInterrupted: () => boolean = () => false): Promise<boolean> {
    let budget = this.#options.prefillTokensPerStep;
    while (budget > 0 && !isInterrupted()) {
      const sequence = this.#reading ?? this.#begin();
      if (sequence === null) break;
      budget -= await this.#readChunk(sequence, emit);
    }
    if (this.#rows.length > 0 && !isInterrupted()) await this.#sampleAll(emit);
    return this.running > 0 || this.waiting > 0;
  }

  /** Gives back the memory of the batch when nothing runs; prefixes stay. */
  trim(): void {
    if (this.running > 0) return;
    this.#batch.release();
    this.#staging.release();
  }

  /** Frees the session. Sequences that are not finished are lost. */
  async close(): Promise<void> {
    await this.#session.release();
  }

  /** Takes the next waiting sequence into the staging buffer, with what the prefix cache holds of it. */
  #begin(): Sequence | null {
    if (this.#rows.length >= this.#options.maxSequences) return null;
    const next = this.#waiting.shift();
    if (next === undefined) return null;
    const blocks = this.#prefixes.lookup(next.tokens, next.length - 1);
    next.cached = next.reused = blocks.length * BLOCK_TOKENS;
    this.#staging.reserve(1, next.cached, 0);
    for (const [i, block] of blocks.entries()) this.#staging.writeBlock(block, 0, i * BLOCK_TOKENS, BLOCK_TOKENS);
    this.#reading = next;
    return next;
  }

  /** @returns tokens read */
  async #readChunk(sequence: Sequence, emit: Emit): Promise<number> {
    const start = sequence.cached;
    const count = Math.min(BLOCK_TOKENS, sequence.length - start);
    this.#staging.reserve(1, start + count, 1);
    const past = this.#staging.positions;
    const mask = new Float32Array(count * (past + count)).fill(MASKED);
    for (let s = 0; s < count; s++) {
      const row = s * (past + count);
      mask.fill(0, row, row + start);
      mask.fill(0, row + past, row + past + s + 1);
    }
    const { added, probabilities } = await this.#run(this.#staging, {
      rows: 1,
      count,
      tokens: sequence.tokens.subarray(start, start + count),
      positions: BigInt64Array.from({ length: count }, (_, s) => BigInt(start + s)),
      mask,
      inverseTemperatures: Float32Array.of(inverseTemperature(sequence)),
    });
    this.#staging.append(added, [start], 1, count);
    sequence.cached += count;
    if (sequence.cached < sequence.length) return count;
    this.#reading = null;
    this.#remember(sequence, this.#staging, 0);
    if (!this.#draw(sequence, probabilities, emit)) this.#join(sequence);
    return count;
  }

  async #sampleAll(emit: Emit): Promise<void> {
    const rows = this.#rows.length;
    const longest = this.#rows.reduce((most, { cached }) => Math.max(most, cached), 0);
    this.#batch.reserve(rows, longest + 1, rows);
    const past = this.#batch.positions;
    const tokens = new Int32Array(rows);
    const positions = new BigInt64Array(rows);
    const inverseTemperatures = new Float32Array(rows);
    const lengths = new Int32Array(rows);
    const mask = new Float32Array(rows * (past + 1));
    for (const [b, sequence] of this.#rows.entries()) {
      tokens[b] = sequence.tokens[sequence.length - 1] ?? 0;
      positions[b] = BigInt(sequence.cached);
      inverseTemperatures[b] = inverseTemperature(sequence);
      lengths[b] = sequence.cached;
      const row = b * (past + 1);
      mask.fill(MASKED, row + sequence.cached, row + past);
    }
    const inputs = { rows, count: 1, tokens, positions, mask, inverseTemperatures };
    const { added, probabilities } = await this.#run(this.#batch, inputs);
    this.#batch.append(added, lengths, rows, 1);
    const { vocab } = this.#architecture;
    // Backwards, because a finished row takes the place of nothing that is still to be drawn.
    for (let b = rows - 1; b >= 0; b--) {
      const sequence = this.#rows[b];
      if (sequence === undefined) continue;
      sequence.cached++;
      if (this.#draw(sequence, probabilities.subarray(b * vocab, (b + 1) * vocab), emit)) {
        this.#remember(sequence, this.#batch, b);
        this.#leave(b);
      }
    }
  }

  /** @returns whether the sequence is finished */
  #draw(sequence: Sequence, modelled_V: Float32Array, emit: Emit): boolean {
    const { request, rules, matcher } = sequence;
    const probabilities_V = rules?.apply(modelled_V, matcher?.allowed() ?? null) ?? modelled_V;
    const index = sequence.length - request.prompt.length;
    const { token, logprob } = drawToken(probabilities_V, request.sampling, uniformAt(request.sampling.seed, index));
    rules?.accept(token);
    matcher?.accept(token);
    sequence.tokens[sequence.length] = token;
    sequence.length++;
    const isStopped = request.stopIds.includes(token) || matcher?.allowed().length === 0;
    const finish = isStopped ? "stop" : index + 1 >= request.maxTokens ? "length" : null;
    emit({
      id: request.id,
      token,
      logprob,
      alternatives:
        request.topLogprobs > 0 ? topAlternatives(probabilities_V, request.sampling, request.topLogprobs) : null,
      finish,
      cachedTokens: index === 0 ? sequence.reused : null,
    });
    return finish !== null;
  }

  #join(sequence: Sequence): void {
    const row = this.#rows.length;
    // Room for those that wait as well, or the buffer would be copied again for every doubling.
    const rows = Math.min(this.#options.maxSequences, row + 1 + this.#waiting.length);
    this.#batch.reserve(rows, sequence.cached + 1, row);
    this.#batch.copyRow(this.#staging, 0, row, sequence.cached);
    this.#rows.push(sequence);
  }

  #leave(row: number): void {
    const last = this.#rows.pop();
    if (last === undefined || row === this.#rows.length) return;
    this.#batch.copyRow(this.#batch, this.#rows.length, row, last.cached);
    this.#rows[row] = last;
  }

  #remember(sequence: Sequence, buffer: KvBuffer, row: number): void {
    this.#prefixes.insert(sequence.tokens, sequence.cached, (start) => buffer.readBlock(row, start, BLOCK_TOKENS));
  }

  async #run(
    buffer: KvBuffer,
    inputs: {
      readonly rows: number;
      readonly count: number;
      readonly tokens: Int32Array;
      readonly positions: BigInt64Array;
      readonly mask: Float32Array;
      readonly inverseTemperatures: Float32Array;
    },
  ): Promise<{ added: Float32Array; probabilities: Float32Array }> {
    const { rows, count } = inputs;
    const past = buffer.positions;
    const { kvHeads, headSize, layers } = this.#architecture;
    const feeds: Record<string, Tensor> = {
      [INPUT.tokens]: new Tensor("int32", inputs.tokens, [rows, count]),
      [INPUT.positions]: new Tensor("int64", inputs.positions, [rows, count]),
      [INPUT.mask]: new Tensor("float32", inputs.mask, [rows, 1, 1, count, past + count]),
      [INPUT.split]: new Tensor("int64", BigInt64Array.of(BigInt(past), BigInt(count)), [2]),
      [INPUT.inverseTemperature]: new Tensor("float32", inputs.inverseTemperatures, [rows, 1]),
    };
    const pastDims = [rows, kvHeads, 1, past, headSize];
    for (let layer = 0; layer < layers; layer++) {
      feeds[pastKey(layer)] = new Tensor("float32", buffer.plane(2 * layer, rows), pastDims);
      feeds[pastValue(layer)] = new Tensor("float32", buffer.plane(2 * layer + 1, rows), pastDims);
    }
    const outputs = await this.#session.run(feeds);
    return { added: floats(outputs[OUTPUT.added]), probabilities: floats(outputs[OUTPUT.probabilities]) };
  }
}

function inverseTemperature({ request, rules }: Sequence): number {
  const { temperature } = request.sampling;
  // Rules come before the temperature, so they bring it to bear themselves.
  return temperature === 0 || rules !== null ? 1 : 1 / temperature;
}

function floats(tensor: InferenceSession.OnnxValueMapType[string] | undefined): Float32Array {
  if (tensor === undefined || !(tensor.data instanceof Float32Array)) {
    throw new TypeError("The decode graph gave no float32 output");
  }
  return tensor.data;
}
