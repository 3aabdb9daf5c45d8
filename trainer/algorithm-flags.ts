import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { advantageSchema } from "./advantage/advantage.ts";
import { algorithmSchema, type Algorithm } from "./algorithm.ts";
import { creditSchema } from "./credit/credit.ts";
import { AGGREGATIONS } from "./loss/aggregate.ts";
import { importanceSchema } from "./loss/importance.ts";
import { KL_ESTIMATORS } from "./loss/kl.ts";
import { lossSchema } from "./loss/loss.ts";

/** Flags that stand in place of a part of the algorithm: `--algorithm grpo --credit air --importance none`. */

const typesOf = (schema: {
  readonly options: readonly { readonly shape: { readonly type: { readonly value: string } } }[];
}) => schema.options.map((option) => option.shape.type.value).filter((type) => type !== "custom");

const typeFlag = (schema: Parameters<typeof typesOf>[0], what: string) => {
  const types = typesOf(schema);
  return z.enum(types).optional().describe(what);
};
const numberFlag = (low: number, high: number, what: string) => z.number().min(low).max(high).optional().describe(what);

/** Fields of the trainer's configuration; their bounds are checked again by the schema that a value becomes a part of. */
export const algorithmFlags = {
  credit: typeFlag(creditSchema, "how a rollout's reward is given to its calls"),
  gamma: numberFlag(0, 1, "with --credit discounted or air: discount for each call"),
  terminalWeight: numberFlag(0, 100, "with --credit air: weight of the result beside the rewards of tools"),
  overlong: z.int().min(1).max(1_000_000).optional().describe("tokens from which on an answer is punished by −1"),
  overlongCache: z
    .int()
    .min(1)
    .max(1_000_000)
    .optional()
    .describe("tokens before --overlong over which the punishment grows (default: all of them)"),
  advantage: typeFlag(advantageSchema, "what credit is compared with, and divided by"),
  gaeGamma: numberFlag(0, 1, "with a critic: discount for each token to its answer's end (default: 1)"),
  gaeLambda: numberFlag(
    0,
    1,
    "with a critic: 1 follows rewards to the answer's end, less believes the critic sooner (default: 1)",
  ),
  valueCoefficient: numberFlag(0, 100, "with a critic: weight of its loss beside the policy's (default: 0.5)"),
  valueClip: z
    .number()
    .positive()
    .max(1_000_000)
    .optional()
    .describe("with a critic: how far an update moves a value, in units of reward (default: 0.2)"),
  loss: typeFlag(lossSchema, "surrogate: what an update pulls on"),
  importance: typeFlag(importanceSchema, "correction of samples that older versions made"),
  importanceCap: numberFlag(1, 1000, "largest importance weight"),
  clipLow: numberFlag(0, 1, "how far below 1 a ratio may fall"),
  clipHigh: numberFlag(0, 10, "how far above 1 a ratio may rise"),
  aggregation: z.enum(AGGREGATIONS).optional().describe("what counts the same in the loss"),
  responseTokens: numberFlag(1, 1_000_000, "with --aggregation sequence-sum: what a sum is divided by, in tokens"),
  klCoefficient: numberFlag(0, 10, "weight of the KL to the start, per nat"),
  klEstimator: z.enum(KL_ESTIMATORS).optional().describe("estimator of the KL to the start"),
  klPlace: z.enum(["loss", "reward"]).optional().describe("where the KL to the start is taken off"),
  entropyBonus: numberFlag(0, 10, "weight of the entropy bonus, per nat"),
};
const flagsSchema = z.object(algorithmFlags);
export type AlgorithmFlags = z.infer<typeof flagsSchema>;

/**
 * An algorithm with the flags' values in place of its own. A part that gets another type keeps what every type of it
 * has (the shaping of credit, the KL term and the aggregation of a loss) and takes the rest from its defaults.
 * @throws FulgurError ERR_CONFIG naming the flag that the chosen type has no use for
 */
export function withFlags(algorithm: Algorithm, flags: AlgorithmFlags): Algorithm {
  const { credit, advantage, loss } = algorithm;
  const parsed = algorithmSchema.safeParse({
    credit: replaced(creditSchema, credit, flags.credit, {
      gamma: flags.gamma,
      terminalWeight: flags.terminalWeight,
      overlong: overlongOf(credit, flags),
    }),
    advantage: replaced(
      advantageSchema,
      advantage,
      flags.advantage,
      { gamma: flags.gaeGamma, lambda: flags.gaeLambda, value: valueOf(advantage, flags) },
      {
        gamma: "gaeGamma",
        lambda: "gaeLambda",
        value: flags.valueClip === undefined ? "valueCoefficient" : "valueClip",
      },
    ),
    loss: replaced(lossSchema, loss, flags.loss, {
      importance: importanceOf(loss, flags),
      clipLow: flags.clipLow,
      clipHigh: flags.clipHigh,
      aggregation: flags.aggregation,
      responseTokens: flags.responseTokens,
      klCoefficient: flags.klCoefficient,
      klEstimator: flags.klEstimator,
      klPlace: flags.klPlace,
      entropyBonus: flags.entropyBonus,
    }),
  });
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new FulgurError("ERR_CONFIG", `--${kebab(String(issue?.path.at(-1)))}: ${issue?.message ?? "invalid"}`);
}

interface Union {
  readonly options: readonly {
    readonly shape: Readonly<Record<string, z.ZodType>> & { readonly type: { readonly value: string } };
  }[];
}

/** Bounds that mean something else for each type. */
const OWN_OF_TYPE = new Set(["clipLow", "clipHigh", "bound", "gamma", "terminalWeight", "epsilon"]);

/** @param flagOf fields whose flags have other names */
function replaced(
  union: Union,
  before: { readonly type: string },
  type: string | undefined,
  given: Readonly<Record<string, unknown>>,
  flagOf: Readonly<Record<string, string>> = {},
): Record<string, unknown> {
  const chosen = type ?? before.type;
  const option = union.options.find((each) => each.shape.type.value === chosen);
  const shape: Readonly<Record<string, z.ZodType>> = option?.shape ?? {};
  const isOther = chosen !== before.type;
  // A value that the other type cannot have is not kept either: DPO's β is never 0.
  const kept = Object.entries(before).filter(
    ([name, value]) => !(isOther && OWN_OF_TYPE.has(name)) && shape[name]?.safeParse(value).success === true,
  );
  const set = Object.entries(given).filter(([, value]) => value !== undefined);
  const stray = set.find(([name]) => !(name in shape));
  if (stray !== undefined) throw strayFlag(flagOf[stray[0]] ?? stray[0], chosen);
  return { ...Object.fromEntries(kept), ...Object.fromEntries(set), type: chosen };
}

function strayFlag(field: string, type: string): FulgurError {
  return new FulgurError(
    "ERR_CONFIG",
    `--${kebab(field)}: ${type} has no such setting; leave the flag out, or choose another type`,
  );
}

function kebab(field: string): string {
  return field.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
}

function overlongOf(
  { overlong }: Algorithm["credit"],
  { overlong: maxTokens, overlongCache: cacheTokens }: AlgorithmFlags,
): unknown {
  if (maxTokens === undefined && cacheTokens === undefined) return undefined;
  if (maxTokens === undefined) {
    if (overlong === undefined) throw new FulgurError("ERR_CONFIG", "--overlong-cache: wanted --overlong beside it");
    return { ...overlong, cacheTokens };
  }
  return { maxTokens, cacheTokens: cacheTokens ?? maxTokens };
}

/** The critic's loss: what was given, the rest as the algorithm has it or by default. */
function valueOf(
  before: Algorithm["advantage"],
  { valueCoefficient: coefficient, valueClip: clip }: AlgorithmFlags,
): unknown {
  if (coefficient === undefined && clip === undefined) return undefined;
  return {
    ...(before.type === "gae" ? before.value : {}),
    ...(coefficient === undefined ? {} : { coefficient }),
    ...(clip === undefined ? {} : { clip }),
  };
}

function importanceOf(loss: Algorithm["loss"], { importance: type, importanceCap: cap }: AlgorithmFlags): unknown {
  if (type === undefined && cap === undefined) return undefined;
  const before = "importance" in loss ? loss.importance : { type: "truncated" };
  const chosen = type ?? before.type;
  if (cap !== undefined && (chosen === "none" || chosen === "ratio")) throw strayFlag("importanceCap", chosen);
  return replaced(importanceSchema, before, type, { cap });
}
