/**
 * A critic that shares the policy's trunk: V(s) = w·h + b, where h is the final hidden state, normalised and before the
 * norm's gain. Its entries are then about 1 in every model, so that one learning rate suits them all.
 * It is trained in full whatever the method, kept in checkpoints, and no part of what is exported: an adapter or a model
 * that is served answers with words alone.
 */

import type { Tensor } from "../model/safetensors.ts";

export const VALUE_WEIGHT = "value_head.weight";
export const VALUE_BIAS = "value_head.bias";

/** A fresh head, weight [1, width] and bias [1]: all zero, so that every value is 0 and the trunk is not yet pulled. */
export function initialValueHead(width: number): Map<string, Tensor> {
  return new Map([
    [VALUE_WEIGHT, { shape: [1, width], data: new Float32Array(width) }],
    [VALUE_BIAS, { shape: [1], data: new Float32Array(1) }],
  ]);
}

/**
 * How many times the step's rate a parameter moves by; 1 for all but the head's bias. AdamW moves every weight by about
 * the rate whatever its gradient, so that w·h can change `width` times as fast as b. The bias keeps pace with it: a mean
 * return that rises from step to step would else be spelt out in w, as noise between states.
 */
export function rateFactor(name: string, width: number): number {
  return name === VALUE_BIAS ? width : 1;
}

/** What is left for others: the policy's own weights. */
export function withoutValueHead(tensors: ReadonlyMap<string, Tensor>): Map<string, Tensor> {
  return new Map([...tensors].filter(([name]) => name !== VALUE_WEIGHT && name !== VALUE_BIAS));
}
