import { FulgurError } from "#shared/errors.ts";

/**
 * A user's own advantage: from the credits of a group's rollouts, [R][T], to as many advantages. It sees one task's
 * rollouts and never the batch.
 */
export type AdvantageFunction = (credits_RT: readonly Float64Array[]) => readonly ArrayLike<number>[];

/** @throws FulgurError ERR_SHAPE when what comes is not one finite number for each credit */
export function customAdvantage(credits_RT: readonly Float64Array[], compute: AdvantageFunction): Float64Array[] {
  const advantages_RT = compute(credits_RT).map((each) => Float64Array.from(each));
  const isOfShape =
    advantages_RT.length === credits_RT.length &&
    advantages_RT.every((each, at) => each.length === credits_RT[at]?.length && each.every(Number.isFinite));
  if (!isOfShape) {
    const lengths = (arrays: readonly Float64Array[]): string => `[${arrays.map((each) => each.length).join(", ")}]`;
    throw new FulgurError(
      "ERR_SHAPE",
      `the algorithm's own advantage is to give finite numbers, ${lengths(credits_RT)} for the group's rollouts, and gave ${lengths(advantages_RT)}: ${advantages_RT.map((each) => `[${each.join(", ")}]`).join(", ")}`,
    );
  }
  return advantages_RT;
}
