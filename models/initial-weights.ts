/**
 * The weights that making the built-in model starts from: a plain Llama, some of whose heads begin as circuits that
 * copying needs. From usual random weights a model of this size sat at chance for a million tokens; from these it
 * copies after a few hundred thousand. Training is free to change every one of them.
 */

import type { Architecture } from "../trainer/model/architecture.ts";
import type { Tensor } from "../trainer/model/safetensors.ts";

/** Standard deviation of an embedding entry: with it, a residual that is one token's embedding predicts that token. */
const EMBEDDING_STD = 0.08;
/** Entry 0 of every embedding, in units of {@link EMBEDDING_STD}: a constant that heads can turn into a fixed query. */
const CONSTANT = 4;
/** Length of one frequency's part of an offset head's query; large enough for most of the attention. */
const OFFSET_GAIN = 7;
/** Scale of the induction head's query and key. */
const INDUCTION_GAIN = 1.4;
/** Standard deviation of the matrices that carry no circuit. */
const WEIGHT_STD = 0.02;

/**
 * Layer 0, heads 0 and 1 attend one and two tokens back and write what they see into the residual; in all later
 * layers each head's value and output matrices pass a token's identity on; layer 1, head 0 asks "where was this token
 * the one before?" (an induction head).
 * @param random uniform in [0, 1)
 * @returns tensors by Hugging Face name, the head tied to the embedding
 * @see Olsson et al. 2022, "In-context Learning and Induction Heads", arXiv:2209.11895
 */
export function initialWeights(architecture: Architecture, random: () => number): Map<string, Tensor> {
  const { layers, width, heads, headSize, feedForward, vocab } = architecture;
  const gaussian = gaussianFrom(random);
  const noise = (rows: number, columns: number, std: number): Float32Array =>
    Float32Array.from({ length: rows * columns }, () => gaussian() * std);
  const weights = new Map<string, Tensor>();
  const put = (name: string, shape: readonly number[], data: Float32Array): void => {
    weights.set(name, { shape, data });
  };

  const embedding = noise(vocab, width, EMBEDDING_STD);
  for (let token = 0; token < vocab; token++) embedding[token * width] = CONSTANT * EMBEDDING_STD;
  put("model.embed_tokens.weight", [vocab, width], embedding);

  /** Root mean square of an embedding, by which the first norm divides. */
  const embeddingRms = EMBEDDING_STD * Math.sqrt(1 + CONSTANT ** 2 / width);
  const constantAfterNorm = (CONSTANT * EMBEDDING_STD) / embeddingRms;
  const queryWidth = heads * headSize;
  const outStd = WEIGHT_STD / Math.sqrt(2 * layers);
  /** What offset head 0 reads, and where it writes it: the induction head must use the same two. */
  const reads = projection(headSize, width, gaussian);
  const writes = projection(headSize, width, gaussian);

  for (let layer = 0; layer < layers; layer++) {
    const path = `model.layers.${layer}`;
    const query = noise(queryWidth, width, WEIGHT_STD);
    const key = noise(queryWidth, width, WEIGHT_STD);
    const value = noise(queryWidth, width, WEIGHT_STD);
    const output = noise(width, queryWidth, outStd);
    for (let head = 0; head < heads; head++) {
      const row = head * headSize;
      if (layer === 0 && head < 2) {
        setOffsetHead(query, key, { architecture, row, offset: head + 1, constantAfterNorm });
        const read = head === 0 ? reads : projection(headSize, width, gaussian);
        const write = head === 0 ? writes : projection(headSize, width, gaussian);
        setRows(value, read, { row, width, scale: 1 });
        setColumns(output, write, { column: row, width, columns: queryWidth, scale: embeddingRms });
      } else if (layer > 0) {
        const identity = projection(headSize, width, gaussian);
        setRows(value, identity, { row, width, scale: 1 });
        setColumns(output, identity, { column: row, width, columns: queryWidth, scale: embeddingRms });
      }
      if (layer === 1 && head === 0) {
        setRows(query, reads, { row, width, scale: INDUCTION_GAIN });
        setRows(key, writes, { row, width, scale: INDUCTION_GAIN });
      }
    }
    put(`${path}.self_attn.q_proj.weight`, [queryWidth, width], query);
    put(`${path}.self_attn.k_proj.weight`, [queryWidth, width], key);
    put(`${path}.self_attn.v_proj.weight`, [queryWidth, width], value);
    put(`${path}.self_attn.o_proj.weight`, [width, queryWidth], output);
    put(`${path}.mlp.gate_proj.weight`, [feedForward, width], noise(feedForward, width, WEIGHT_STD));
    put(`${path}.mlp.up_proj.weight`, [feedForward, width], noise(feedForward, width, WEIGHT_STD));
    put(`${path}.mlp.down_proj.weight`, [width, feedForward], noise(width, feedForward, outStd));
    put(`${path}.input_layernorm.weight`, [width], new Float32Array(width).fill(1));
    put(`${path}.post_attention_layernorm.weight`, [width], new Float32Array(width).fill(1));
  }
  put("model.norm.weight", [width], new Float32Array(width).fill(1));
  return weights;
}

interface OffsetHead {
  readonly architecture: Architecture;
  /** First row of the head. */
  readonly row: number;
  /** Tokens back. */
  readonly offset: number;
  readonly constantAfterNorm: number;
}

/**
 * Makes a head attend a fixed number of tokens back: its query is its key turned back by so many positions, in the
 * faster rotations (the slower ones hardly tell neighbours apart), and both come from the constant alone.
 */
function setOffsetHead(query: Float32Array, key: Float32Array, { architecture, ...head }: OffsetHead): void {
  const { width, headSize, ropeTheta } = architecture;
  const { row, offset, constantAfterNorm } = head;
  const half = headSize / 2;
  query.fill(0, row * width, (row + headSize) * width);
  key.fill(0, row * width, (row + headSize) * width);
  const gain = OFFSET_GAIN / constantAfterNorm;
  for (let pair = 0; pair < (half * 3) / 8; pair++) {
    const angle = -offset * ropeTheta ** ((-2 * pair) / headSize);
    query[(row + pair) * width] = gain * Math.cos(angle);
    query[(row + pair + half) * width] = gain * Math.sin(angle);
    key[(row + pair) * width] = gain;
  }
}

interface RowPlace {
  readonly row: number;
  readonly width: number;
  readonly scale: number;
}

function setRows(matrix: Float32Array, rows: Float32Array, { row, width, scale }: RowPlace): void {
  for (const [i, value] of rows.entries()) matrix[row * width + i] = value * scale;
}

interface ColumnPlace {
  readonly column: number;
  readonly width: number;
  readonly columns: number;
  readonly scale: number;
}

/** Writes the transpose of `rows` [n, width] into columns `column` to `column + n` of a [width, columns] matrix. */
function setColumns(matrix: Float32Array, rows: Float32Array, { column, width, columns, scale }: ColumnPlace): void {
  for (const [i, value] of rows.entries()) {
    matrix[(i % width) * columns + column + Math.floor(i / width)] = value * scale;
  }
}

/** `count` orthonormal random rows of `width`, whose entry 0 (the constant's place) is then set to 0. */
function projection(count: number, width: number, gaussian: () => number): Float32Array {
  const rows = new Float32Array(count * width);
  for (let row = 0; row < count; row++) {
    const vector = Float64Array.from({ length: width }, gaussian);
    for (let earlier = 0; earlier < row; earlier++) {
      const other = rows.subarray(earlier * width, (earlier + 1) * width);
      const dot = vector.reduce((sum, value, i) => sum + value * (other[i] ?? 0), 0);
      for (const [i, value] of other.entries()) vector[i] = (vector[i] ?? 0) - dot * value;
    }
    const norm = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
    for (const [i, value] of vector.entries()) rows[row * width + i] = value / norm;
  }
  for (let row = 0; row < count; row++) rows[row * width] = 0;
  return rows;
}

/** Standard normal numbers by Box and Muller's method. */
function gaussianFrom(random: () => number): () => number {
  return () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}
