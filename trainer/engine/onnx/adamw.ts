/** AdamW on flat arrays, in float32 as PyTorch keeps it. */

/** AdamW's constants and where in its run it is. */
export interface AdamwOptions {
  readonly learningRate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly weightDecay: number;
  /** 1 for the first step; the bias of the moments is corrected by it. */
  readonly step: number;
  /** Gradients are multiplied by it first (clipping). */
  readonly gradientScale: number;
}

/** One parameter's arrays, all of one length. */
export interface AdamwArrays {
  readonly weights: Float32Array;
  readonly gradients: Float32Array;
  readonly firstMoments: Float32Array;
  readonly secondMoments: Float32Array;
}

/**
 * One step, in place, on weights and moments.
 * @see Loshchilov and Hutter 2019, arXiv:1711.05101
 */
export function adamw(arrays: AdamwArrays, options: AdamwOptions): void {
  const { weights, gradients, firstMoments, secondMoments } = arrays;
  const { learningRate, beta1, beta2, epsilon, weightDecay, step, gradientScale } = options;
  const decay = 1 - learningRate * weightDecay;
  const stepSize = learningRate / (1 - beta1 ** step);
  const secondCorrection = Math.sqrt(1 - beta2 ** step);
  for (let i = 0; i < weights.length; i++) {
    const gradient = (gradients[i] ?? 0) * gradientScale;
    const first = beta1 * (firstMoments[i] ?? 0) + (1 - beta1) * gradient;
    const second = beta2 * (secondMoments[i] ?? 0) + (1 - beta2) * gradient * gradient;
    firstMoments[i] = first;
    secondMoments[i] = second;
    weights[i] = (weights[i] ?? 0) * decay - (stepSize * first) / (Math.sqrt(second) / secondCorrection + epsilon);
  }
}
