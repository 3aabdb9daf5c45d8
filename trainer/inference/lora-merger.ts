/**
 * W + a · b for every layer that an adapter changes, by the runtime: the same in JavaScript takes ten times as long.
 * Merged once for all decode threads, because weights that are constants are pre-packed and decode twice as fast as
 * weights that stay apart or come as inputs.
 */

import { InferenceSession, Tensor } from "onnxruntime-node";
import { GraphBuilder } from "../engine/onnx/graph.ts";
import type { PackedLinear, PackedWeights } from "./packed-weights.ts";
import { SESSION_OPTIONS } from "./session-options.ts";

/** Merges adapters, one version after the other. */
export interface LoraMerger {
  /** The weights with every delta added in; layers without one are shared and not copied. */
  merge(weights: PackedWeights): Promise<PackedWeights>;
}

/** Makes a merger; it may be used for any sizes. */
export async function createLoraMerger(): Promise<LoraMerger> {
  const graph = new GraphBuilder("merge");
  const weight = graph.input("weight", "float32", ["in", "out"]);
  const a = graph.input("a", "float32", ["in", "rank"]);
  const b = graph.input("b", "float32", ["rank", "out"]);
  graph.output(graph.node("Gemm", [a, b, weight]), "float32", ["in", "out"], "merged");
  const session = await InferenceSession.create(graph.toBytes(), SESSION_OPTIONS);

  const mergeLinear = async (linear: PackedLinear): Promise<PackedLinear> => {
    const { inputs, outputs, delta } = linear;
    if (delta === null) return linear;
    const { merged } = await session.run({
      weight: new Tensor("float32", linear.weight, [inputs, outputs]),
      a: new Tensor("float32", delta.a, [inputs, delta.rank]),
      b: new Tensor("float32", delta.b, [delta.rank, outputs]),
    });
    if (!(merged?.data instanceof Float32Array)) throw new TypeError("The merge graph gave no float32 output");
    return { ...linear, weight: merged.data, delta: null };
  };
  return {
    async merge(weights) {
      const layers = [];
      for (const layer of weights.layers) {
        layers.push({
          ...layer,
          qkv: await mergeLinear(layer.qkv),
          attentionOut: await mergeLinear(layer.attentionOut),
          gateUp: await mergeLinear(layer.gateUp),
          down: await mergeLinear(layer.down),
        });
      }
      return { ...weights, layers, head: await mergeLinear(weights.head) };
    },
  };
}
