import { describe, expect, it } from "vitest";
import { initialWeights } from "../../models/initial-weights.ts";
import { modelConfig } from "../../models/recipe.ts";
import { Random } from "../../trainer/engine/random.ts";
import { parseArchitecture, ropeTables, weightShapes } from "../../trainer/model/architecture.ts";

const architecture = parseArchitecture(modelConfig(528));
const random = Random.seeded(1);
const weights = initialWeights(architecture, () => random.next());
const { width, headSize } = architecture;
const POSITIONS = 60;

function data(name: string): Float32Array {
  const tensor = weights.get(name);
  if (tensor === undefined) throw new Error(`no ${name}`);
  return tensor.data;
}

/** Attention of one head of layer 0 over random tokens: [query position][key position]. */
function attention(head: number): number[][] {
  const embedding = data("model.embed_tokens.weight");
  const { cos, sin } = ropeTables(architecture, POSITIONS);
  const half = headSize / 2;
  const rotated = (name: string, position: number): number[] => {
    const matrix = data(`model.layers.0.self_attn.${name}.weight`);
    const token = 300 + ((position * 37) % 200);
    const x = embedding.subarray(token * width, (token + 1) * width);
    const rms = Math.sqrt(x.reduce((sum, value) => sum + value * value, 0) / width);
    const y = Array.from({ length: headSize }, (_, i) => {
      const row = matrix.subarray((head * headSize + i) * width, (head * headSize + i + 1) * width);
      return row.reduce((sum, value, j) => sum + value * (x[j] ?? 0), 0) / rms;
    });
    return y.map((value, i) => {
      const pair = position * half + (i % half);
      const other = i < half ? -(y[i + half] ?? 0) : (y[i - half] ?? 0);
      return value * (cos[pair] ?? 0) + other * (sin[pair] ?? 0);
    });
  };
  const keys = Array.from({ length: POSITIONS }, (_, position) => rotated("k_proj", position));
  return Array.from({ length: POSITIONS }, (_, position) => {
    const query = rotated("q_proj", position);
    const scores = keys
      .slice(0, position + 1)
      .map((key) => Math.exp(key.reduce((sum, value, i) => sum + value * (query[i] ?? 0), 0) / Math.sqrt(headSize)));
    const total = scores.reduce((sum, score) => sum + score, 0);
    return scores.map((score) => score / total);
  });
}

describe("the starting weights", () => {
  it("are a whole checkpoint of the architecture, all finite", () => {
    const shapes = weightShapes(architecture);
    expect(new Set(weights.keys())).toEqual(new Set(shapes.keys()));
    for (const [name, shape] of shapes) {
      expect(weights.get(name)?.shape).toEqual(shape);
      expect(data(name).every(Number.isFinite)).toBe(true);
    }
  });

  it("attend one token back in head 0 and two back in head 1, over random tokens", () => {
    for (const head of [0, 1]) {
      const offset = head + 1;
      const rows = attention(head).slice(offset + 1);
      const given = rows.map((row) => row.at(-1 - offset) ?? 0);
      // Not in every place: a key's length varies with its token's embedding, and a longer neighbour can win.
      expect(given.reduce((sum, share) => sum + share, 0) / given.length).toBeGreaterThan(0.6);
    }
  });

  it("pass a token's identity through each later head: value and output matrices are a projection", () => {
    const value = data("model.layers.2.self_attn.v_proj.weight");
    const output = data("model.layers.2.self_attn.o_proj.weight");
    const embedding = data("model.embed_tokens.weight");
    const queryWidth = architecture.heads * headSize;
    const copyOf = (token: number): Float32Array => {
      const x = embedding.subarray(token * width, (token + 1) * width);
      const inner = Float32Array.from({ length: headSize }, (_, i) =>
        value.subarray(i * width, (i + 1) * width).reduce((sum, weight, j) => sum + weight * (x[j] ?? 0), 0),
      );
      return Float32Array.from({ length: width }, (_, o) =>
        inner.reduce((sum, h, i) => sum + h * (output[o * queryWidth + i] ?? 0), 0),
      );
    };
    for (const token of [300, 401, 502]) {
      const copy = copyOf(token);
      const logits = Array.from({ length: 528 }, (_, other) =>
        copy.reduce((sum, entry, j) => sum + entry * (embedding[other * width + j] ?? 0), 0),
      );
      expect(logits.indexOf(Math.max(...logits))).toBe(token);
    }
  });
});
