/** Flags that benchmarks of several cases share. */

/** As run.ts takes a benchmark's own flags. */
export const CASE_FLAGS = { case: { type: "string" }, rounds: { type: "string" } } as const;

/** The case that was asked for, or all. @throws Error for one that there is not */
export function chosenCases<Case extends { readonly key: string }>(
  cases: readonly Case[],
  flags: Readonly<Record<string, unknown>>,
): readonly Case[] {
  const chosen = cases.filter(({ key }) => flags["case"] === undefined || flags["case"] === key);
  if (chosen.length > 0) return chosen;
  throw new Error(`--case takes one of ${cases.map(({ key }) => key).join(", ")}, not ${String(flags["case"])}`);
}

/** Rounds that count. @throws Error for what is no number of them */
export function chosenRounds(flags: Readonly<Record<string, unknown>>, otherwise: number): number {
  const rounds = flags["rounds"] === undefined ? otherwise : Number(flags["rounds"]);
  if (Number.isInteger(rounds) && rounds >= 1) return rounds;
  throw new Error(`--rounds takes a whole number from 1, not ${String(flags["rounds"])}`);
}
