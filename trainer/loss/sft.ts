import type { SurrogateTerm, SurrogateToken } from "./surrogate.ts";

export const IMITATIONS = ["better", "all"] as const;

/**
 * Cross-entropy of the recorded tokens, −log π. With `better`, only of those with a positive advantage: what did better
 * than its baseline is imitated (rejection sampling), the rest says nothing. Needs no behaviour log-probabilities.
 */
export function sftTerm(
  { policyLogprob, advantage }: Pick<SurrogateToken, "policyLogprob" | "advantage">,
  { imitate }: { readonly imitate: (typeof IMITATIONS)[number] },
): SurrogateTerm {
  if (imitate === "better" && advantage <= 0) return { loss: 0, dLogprob: 0 };
  return { loss: -policyLogprob, dLogprob: -1 };
}
