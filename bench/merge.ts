import { measureMerges, type MergeCase } from "./merge-parts/measure.ts";
import type { BenchResult } from "./result.ts";

/**
 * How many calls go on in the training row of the calls before them, by agent framework: each writes the model's turns into
 * its next request in its own way (white space, order of keys, content of tool calls), and the endpoint puts in the ids that
 * it sampled where they mean the same. Beside it, the same endpoint rendering every turn anew from what the client sent.
 */
export const name = "merge";
export const about = "calls that join into one training row, by agent framework";
export const options = { rollouts: { type: "string" } } as const;

export interface MergeBenchResult extends BenchResult {
  readonly cases: readonly MergeCase[];
}

/** @throws Error where a framework made no call of a second turn: nothing was measured */
export async function run(flags: Readonly<Record<string, unknown>>): Promise<MergeBenchResult> {
  const rollouts = Number(flags["rollouts"] ?? 16);
  if (!Number.isInteger(rollouts) || rollouts < 1) throw new Error("--rollouts takes a whole number above 0");
  // The contrary model never ends by itself: its runs are longer, and all alike.
  const cases = await measureMerges({ rollouts: { flight: rollouts, contrary: Math.ceil(rollouts / 4) } });
  const idle = cases.find(({ mergeable }) => mergeable === 0);
  if (idle !== undefined) {
    throw new Error(`${idle.framework} made no second call in ${rollouts} rollouts: ${idle.failed[0] ?? "no error"}`);
  }
  return {
    name,
    ratio: null,
    cases,
    table: [...new Set(cases.map(({ framework }) => framework))].map((framework) => {
      const of = (model: MergeCase["model"], isExact: boolean): MergeCase | undefined =>
        cases.find((each) => each.framework === framework && each.model === model && each.isExact === isExact);
      const [flight, contrary, contraryAnew] = [of("flight", true), of("contrary", true), of("contrary", false)];
      return {
        framework,
        rollouts: flight?.rollouts,
        calls: flight?.calls,
        merged: merged(flight),
        anew: merged(of("flight", false)),
        cached: cached(flight),
        "contrary: merged": merged(contrary),
        "contrary, anew": merged(contraryAnew),
        "row tokens": contrary?.rowTokens,
        "row tokens, anew": contraryAnew?.rowTokens,
      };
    }),
    notes: [
      "the flight agent (two tools, up to 6 turns) in mode train, every other rollout streamed, answered by the built-in model; contrary: by one that writes its arguments in another order than the tool's schema and spaced as no JSON library would, until its turns are over",
      "merged, of the calls after the first of their rollout: those whose prompt begins, id for id, with all tokens of the calls before; cached: prompt tokens from the endpoint's prefix cache; row tokens: of the contrary rollouts, what training has to compute",
      "anew: the endpoint with --continuation-tokens 0, which renders each turn from what the client sent",
      ...cases.flatMap(({ framework, model, isExact, failed, skipped }) => {
        const which = `${framework}, ${model}${isExact ? "" : ", anew"}`;
        return [
          ...(failed.length === 0 ? [] : [`${which}: ${failed.length} runs ended early, such as by: ${failed[0]}`]),
          ...(skipped === 0 ? [] : [`${which}: ${skipped} calls could not be trained on`]),
        ];
      }),
    ],
  };
}

function merged(of: MergeCase | undefined): string {
  return of === undefined ? "–" : `${of.merged} of ${of.mergeable} (${percent(of.merged, of.mergeable)})`;
}

function cached(of: MergeCase | undefined): string {
  return of === undefined ? "–" : percent(of.cachedTokens, of.promptTokens);
}

/** To one decimal. */
function percent(part: number, whole: number): string {
  return whole === 0 ? "–" : `${((100 * part) / whole).toFixed(1)} %`;
}
