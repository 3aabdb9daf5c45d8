import { z } from "zod";

/** Soft punishment of long answers; lengths in tokens. The defaults are the paper's, for long chains of thought. */
export const overlongSchema = z.strictObject({
  /** From here on the punishment is −1: what the endpoint is asked for at most. */
  maxTokens: z.int().min(1).max(1_000_000).default(20_480),
  /** It grows linearly over so many tokens before. */
  cacheTokens: z.int().min(1).max(1_000_000).default(4096),
});
export type OverlongConfig = z.infer<typeof overlongSchema>;

/**
 * What an answer's length adds to the reward: 0 up to maxTokens − cacheTokens, −1 from maxTokens on, linear in between.
 * It says "too long" before the limit cuts the answer off, which would say nothing of why the reward is missing.
 * @see Yu et al. 2025, arXiv:2503.14476
 */
export function overlongPunishment(responseTokens: number, { maxTokens, cacheTokens }: OverlongConfig): number {
  const over = responseTokens - (maxTokens - cacheTokens);
  return over <= 0 ? 0 : -Math.min(1, over / cacheTokens);
}
