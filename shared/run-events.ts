import * as z from "zod";

/**
 * What the trainer tells the terminal: one JSON object a line on its stdout. The same facts are in the store;
 * this is only the live line.
 */

/** A mean with its 95% confidence interval. */
const estimate = z.object({ mean: z.number(), low: z.number(), high: z.number() });
export type Estimate = z.infer<typeof estimate>;

/** Result of an evaluation: `first_tool` is the share of rollouts whose first tool call is the watched one. */
export const evaluationSchema = z.object({
  version: z.string(),
  reward: estimate,
  first_tool: estimate,
  correct: estimate,
  /** Rollouts that finished; the ones that failed are not zero rewards and are counted apart. */
  n: z.number(),
  failed: z.number(),
  wall_s: z.number(),
});
export type Evaluation = z.infer<typeof evaluationSchema>;

export const runEventSchema = z.discriminatedUnion("event", [
  z.object({
    event: z.literal("run"),
    run_id: z.string(),
    policy: z.string(),
    steps: z.number(),
    resumed_from_step: z.number().nullable(),
  }),
  z.object({ event: z.literal("evaluating"), phase: z.enum(["before", "after"]), done: z.number(), total: z.number() }),
  z.object({ event: z.literal("evaluation"), phase: z.enum(["before", "after"]), result: evaluationSchema }),
  /** While waiting for or working on something for over two seconds. */
  z.object({ event: z.literal("progress"), step: z.number(), doing: z.string(), done: z.number(), total: z.number() }),
  z.object({
    event: z.literal("step"),
    step: z.number(),
    steps: z.number(),
    version: z.string(),
    /** Names as in docs/METRICS.md. */
    metrics: z.record(z.string(), z.number()),
    seconds_left: z.number(),
  }),
  z.object({ event: z.literal("warning"), message: z.string() }),
  /** The trainer ends because of an alarm; `version` goes on serving, and started again the run goes on. */
  z.object({ event: z.literal("paused"), step: z.number(), version: z.string(), message: z.string() }),
  z.object({ event: z.literal("done"), summary_path: z.string() }),
]);
export type RunEvent = z.infer<typeof runEventSchema>;
