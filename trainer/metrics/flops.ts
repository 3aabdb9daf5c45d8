import type { EngineInfo, Sample } from "../engine/contract.ts";

/**
 * Floating-point operations that a model needs for a batch, a multiplication and an addition counted as two. What an
 * implementation does beyond that (padding, forward passes done again) is not counted, so that it lowers the utilisation.
 *
 * A forward pass takes 2 a weight and token, and 4·width of the heads for each pair of a token and one that it attends to
 * (QKᵀ and its product with V); the output head only counts for tokens that are scored. The backward pass takes twice
 * the forward of what is trained, which makes the well-known 6·N a token. Frozen weights (LoRA) need the gradient of their
 * inputs alone, once the forward, so a LoRA step needs little more than 4·N.
 * @see Kaplan et al. 2020, arXiv:2001.08361, table 1; Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B
 */

type Shape = Pick<EngineInfo, "architecture" | "method" | "parameters">;

/** Of a forward pass over some rows. */
export function forwardFlops(samples: readonly Sample[], info: Shape): number {
  const { frozen, trained, attention } = parts(samples, info);
  return frozen + trained + attention;
}

/** Of a forward and a backward pass. */
export function trainFlops(samples: readonly Sample[], info: Shape): number {
  const { frozen, trained, attention } = parts(samples, info);
  return 2 * frozen + 3 * (trained + attention);
}

/** The forward pass in parts: by weights that are frozen, by weights that are trained, and between tokens. */
function parts(samples: readonly Sample[], { architecture, method, parameters }: Shape) {
  const { layers, width, heads, kvHeads, headSize, feedForward, vocab } = architecture;
  const layerWeights = width * headSize * (2 * heads + 2 * kvHeads) + 3 * width * feedForward;
  let tokens = 0;
  let scored = 0;
  let pairs = 0;
  for (const { tokens: row, lossMask } of samples) {
    tokens += row.length;
    scored += lossMask.reduce((count, bit) => count + bit, 0);
    pairs += (row.length * (row.length + 1)) / 2;
  }
  const base = 2 * (tokens * layers * layerWeights + scored * width * vocab);
  const attention = 4 * layers * heads * headSize * pairs;
  return method === "full"
    ? { frozen: 0, trained: base, attention }
    : { frozen: base, trained: 2 * tokens * parameters.trained, attention };
}
