import { FulgurError } from "#shared/errors.ts";
import type { SequenceToken, SurrogateTerm } from "./surrogate.ts";

/**
 * A user's own surrogate: an action token's term of the loss, and its derivative with respect to the token's
 * log-probability. The KL term, the entropy bonus and the aggregation are added to it, as to every surrogate.
 */
export type TokenLoss = (token: SequenceToken) => SurrogateTerm;

/** @throws FulgurError ERR_SHAPE when what comes is not finite */
export function customTerm(token: SequenceToken, { term }: { readonly term: TokenLoss }): SurrogateTerm {
  const given = term(token);
  if (Number.isFinite(given.loss) && Number.isFinite(given.dLogprob)) return given;
  throw new FulgurError(
    "ERR_SHAPE",
    `the algorithm's own loss is to give { loss, dLogprob }, both finite, and gave ${JSON.stringify(given)} for ${JSON.stringify(token)}`,
  );
}
