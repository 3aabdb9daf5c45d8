import { z } from "zod";

/**
 * `.fulgur/runs/<run>/summary.json` as the trainer writes it. Only what the terminal shows is named here; the rest
 * passes through.
 */
const interval = z.tuple([z.number(), z.number()]);

const evaluation = z.looseObject({
  reward: z.number(),
  reward_ci: interval.optional(),
  /** Rollouts that were evaluated. */
  n: z.number(),
});

export const summarySchema = z.looseObject({
  task: z.string(),
  steps: z.number(),
  wall_s: z.number(),
  /** Null where the run was told to skip it. */
  eval_before: evaluation.nullable(),
  eval_after: evaluation.nullable(),
  tokens_per_s: z.looseObject({ decode: z.number(), train: z.number() }),
  calls: z.number(),
  rollouts: z.number(),
  dropped: z.record(z.string(), z.number()),
});

export type Summary = z.infer<typeof summarySchema>;

/** A number of both evaluations, with its 95% confidence intervals where the trainer gave them. */
export interface Comparison {
  readonly name: string;
  readonly before: Measured;
  readonly after: Measured;
}

export interface Measured {
  readonly value: number;
  readonly ci: readonly [number, number] | undefined;
}

/** The compared numbers in the order of the file: reward first, then the shares (`memory_first`, `correct`). */
export function comparisons({ eval_before: first, eval_after: last }: Summary): Comparison[] {
  if (first === null || last === null) return [];
  const names = Object.keys(first).filter(
    (name) => name !== "n" && name !== "failed" && !name.endsWith("_ci") && !name.endsWith("_s"),
  );
  return names.flatMap((name) => {
    const before = measured(first, name);
    const after = measured(last, name);
    return before === undefined || after === undefined ? [] : [{ name, before, after }];
  });
}

function measured(values: Readonly<Record<string, unknown>>, name: string): Measured | undefined {
  const value = values[name];
  return typeof value === "number" ? { value, ci: interval.safeParse(values[`${name}_ci`]).data } : undefined;
}
