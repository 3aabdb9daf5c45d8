import { FulgurError } from "#shared/errors.ts";
import type { Cotangent, Engine, TokenScores } from "./engine/contract.ts";
import type { SiftedGroup, TrainingRollout } from "./batch/sift.ts";
import type { Row } from "./batch/trajectories.ts";
import { needsCritic, normaliseBatch, type AdvantageConfig, type CriticConfig } from "./advantage/advantage.ts";
import { criticAdvantages } from "./advantage/critic.ts";
import { klPenalties, penaliseKl, type KlPenaltyOptions } from "./advantage/kl-penalty.ts";
import { computeLoss, type LossConfig, type LossMetrics } from "./loss/loss.ts";
import type { LossRow } from "./loss/loss-row.ts";
import { measureMismatch, type Mismatch, type MismatchRow } from "./loss/mismatch.ts";
import { explainedVariance, valueLoss, type ValueLossResult, type ValueRow } from "./loss/value.ts";

/** What the update of one step needs. */
export interface LearnOptions {
  readonly engine: Pick<Engine, "score" | "backward" | "step">;
  /** Scores under the weights that training began with; needed where the loss has a KL term. */
  readonly reference?: Pick<Engine, "score"> | undefined;
  readonly loss: LossConfig;
  /**
   * How the groups' advantages become those of tokens: by a critic, which needs an engine with a value head, and by
   * normalising over the batch; absent means that they are final.
   */
  readonly advantage?: AdvantageConfig | undefined;
  readonly learningRate: number;
  readonly maxGradNorm: number;
  readonly updates: number;
  /**
   * Part of the batch's groups that are there, in (0, 1]. Those that are missing are ones without a spread which could not be
   * replaced: they would pull at nothing, and count as that. Without it, the step from two groups would be as long as one
   * from sixteen, and mostly noise. Default 1.
   */
  readonly fullness?: number | undefined;
  /**
   * Whether what samples computes as the engine does, but for float noise; where it rounds, as a server in int8 does,
   * rows of the current weights are scored too, and weighed by what the rounding changed. Default true.
   */
  readonly isServedExactly?: boolean | undefined;
  readonly now: () => number;
}

/** Explained in docs/METRICS.md. */
export interface LearnReport extends Mismatch, LossMetrics, Partial<CriticMetrics> {
  /** `kl_behaviour` on the samples of the current weights; missing where there are none. */
  readonly mismatch_kl?: number;
  readonly entropy: number;
  readonly grad_norm: number;
  readonly rows: number;
  readonly tokens: number;
  readonly action_tokens: number;
  /** In the engine. */
  readonly seconds: number;
}

/** Only with a critic. */
interface CriticMetrics {
  readonly value_loss: number;
  readonly value_clip_fraction: number;
  readonly explained_variance: number;
}

/** A training row with its place in the batch. */
interface BatchRow {
  readonly row: Row;
  readonly rollout: number;
  readonly group: number;
  /** [T]; what the group gave. */
  readonly advantages: Float64Array;
  readonly isFresh: boolean;
}

/**
 * One batch → optimizer updates:
 *
 *     score       under the weights as they are, and under the reference
 *     advantages  what the groups gave, or credit against the critic's values; less the KL penalty; normalised
 *     for each update:
 *         loss    of the policy, and of the critic: one derivative for every token's score
 *         pull, step
 *
 * A row that the current weights sampled needs no scoring before its first update: its importance ratio is 1 but for
 * rounding, so the recorded log-probabilities are the policy's. Rows of older versions are scored, those whose
 * log-probabilities were not recorded, and all rows with several updates, where inference rounds, or with a critic, whose
 * values come of nothing else. What the engine really assigns comes back from the pull and is reported against what was
 * recorded: if training and inference ever disagree, `kl_behaviour` shows it.
 */
export async function learn(groups: readonly SiftedGroup[], options: LearnOptions): Promise<LearnReport> {
  const { engine, reference, loss, advantage, learningRate, maxGradNorm, updates, now } = options;
  const { fullness = 1, isServedExactly = true } = options;
  const startedAt = now();
  const parts = dealGroups(groups, updates).map((part) => batchRows(part));
  const all = parts.flat();
  const scored = await scoreSome(
    engine,
    all.filter(
      (each) =>
        updates > 1 || !isServedExactly || !each.isFresh || !each.row.isBehaviourKnown || needsCritic(advantage),
    ),
  );
  const proximal = (each: BatchRow): Float32Array => scored.get(each)?.logprobs ?? each.row.behaviourLogprobs;
  const referenceScores = reference === undefined ? new Map<BatchRow, TokenScores>() : await scoreSome(reference, all);

  const targets = targetsOf(
    all.map((each) => ({
      each,
      policyLogprobs: proximal(each),
      values: scored.get(each)?.values,
      reference: referenceScores.get(each),
    })),
    { loss, advantage },
  );
  const tokensPerUpdate = countActionTokens(all) / parts.length;

  const measured = new Map<BatchRow, TokenScores>();
  const reports: UpdateReport[] = [];
  for (const [update, part] of parts.entries()) {
    // The first update starts from the weights that were scored; later ones have moved on.
    const current = update === 0 ? undefined : await scoreSome(engine, part);
    const result = computeLoss(
      part.map((each) =>
        lossRow(each, {
          advantages: targets.get(each)?.advantages ?? each.advantages,
          proximalLogprobs: proximal(each),
          current: current?.get(each),
          reference: referenceScores.get(each),
        }),
      ),
      loss,
      { tokensPerUpdate },
    );
    const critic = needsCritic(advantage) ? valueLoss(criticRows(part, targets, current), advantage.value) : undefined;
    const cotangents: Cotangent[] = part.map((each, at) => ({
      dLogprobs: times(fullness, result.dLogprobs[at] ?? new Float32Array(each.row.tokens.length)),
      ...(result.dEntropy?.[at] === undefined ? {} : { dEntropy: times(fullness, result.dEntropy[at]) }),
      ...(critic?.dValues[at] === undefined ? {} : { dValues: times(fullness, critic.dValues[at]) }),
    }));
    const scores = await engine.backward(
      part.map((each) => each.row),
      cotangents,
    );
    for (const [at, each] of part.entries()) {
      const first = scored.get(each) ?? scores[at];
      if (first !== undefined) measured.set(each, first);
    }
    const { gradNorm } = await engine.step({ learningRate, maxGradNorm });
    reports.push({ ...result.metrics, critic, grad_norm: gradNorm });
  }
  return {
    ...meanOf(reports),
    ...(needsCritic(advantage) ? { explained_variance: explainedVariance(criticRows(all, targets)) } : {}),
    ...measureMismatch(mismatchRows(all, measured)),
    ...serverMismatch(all, measured),
    ...sizes(all, measured),
    rows: all.length,
    seconds: (now() - startedAt) / 1000,
  };
}

function times(factor: number, values: Float32Array): Float32Array {
  return factor === 1 ? values : values.map((value) => factor * value);
}

/** Groups dealt to updates in turn; no update is left without one. */
function dealGroups(groups: readonly SiftedGroup[], updates: number): SiftedGroup[][] {
  const hands: SiftedGroup[][] = Array.from({ length: Math.min(updates, groups.length) }, () => []);
  for (const [at, group] of groups.entries()) hands[at % hands.length]?.push(group);
  return hands;
}

function batchRows(groups: readonly SiftedGroup[]): BatchRow[] {
  const rollouts = groups.flatMap(({ rollouts }, group) =>
    rollouts.map((each): [TrainingRollout, number] => [each, group]),
  );
  return rollouts.flatMap(([{ trajectory, advantages_T, staleness }, group], rollout) =>
    trajectory.rows.map((row) => ({
      row,
      rollout,
      group,
      advantages: Float64Array.from(row.transitionOfToken, (transition) => advantages_T[transition] ?? 0),
      isFresh: staleness === 0,
    })),
  );
}

/** What one row's advantages are made of, once the batch is scored. */
interface ScoredRow {
  readonly each: BatchRow;
  /** Under the weights at the batch's first update. */
  readonly policyLogprobs: Float32Array;
  readonly values: Float32Array | undefined;
  readonly reference: TokenScores | undefined;
}

/** What a row's tokens are trained towards, [T] each, fixed for all updates of the batch. */
interface Targets {
  readonly advantages: Float64Array;
  /** Of the critic, where there is one: what its values were at the first update, and what they should be. */
  readonly critic?: { readonly proximalValues: Float32Array; readonly returns: Float64Array };
}

/** The targets that the losses of all updates see, over the whole batch. */
function targetsOf(
  rows: readonly ScoredRow[],
  { loss, advantage }: Pick<LearnOptions, "loss" | "advantage">,
): Map<BatchRow, Targets> {
  const raw = rows.map((row) => (needsCritic(advantage) ? judged(row, loss, advantage) : penalised(row, loss)));
  const withMask = rows.map(({ each }, at) => ({
    lossMask: each.row.lossMask,
    advantages: raw[at]?.advantages ?? each.advantages,
  }));
  const final = advantage === undefined ? undefined : normaliseBatch(withMask, advantage);
  return new Map(
    rows.map(({ each }, at) => [
      each,
      { ...raw[at], advantages: final?.[at] ?? raw[at]?.advantages ?? each.advantages },
    ]),
  );
}

/** The group's advantages, less the KL penalty where it is in the reward. */
function penalised({ each, policyLogprobs, reference }: ScoredRow, loss: LossConfig): Targets {
  const { row, advantages } = each;
  const penalty = rewardPenalty(loss);
  if (penalty === undefined || reference === undefined) return { advantages };
  const { lossMask, transitionOfToken: sequenceOfToken } = row;
  const referenceLogprobs = reference.logprobs;
  return {
    advantages: penaliseKl({ lossMask, advantages, sequenceOfToken, policyLogprobs, referenceLogprobs }, penalty),
  };
}

/** Credit and KL penalty, as rewards of single tokens, against the critic's values. */
function judged(
  { each, policyLogprobs, values, reference }: ScoredRow,
  loss: LossConfig,
  critic: CriticConfig,
): Targets {
  if (values === undefined) {
    throw new FulgurError("ERR_CONFIG", "the advantage gae needs a critic; open the engine with valueHead");
  }
  const { row, advantages: credits } = each;
  const { lossMask, transitionOfToken: sequenceOfToken } = row;
  const penalty = rewardPenalty(loss);
  const penalties =
    penalty === undefined || reference === undefined
      ? undefined
      : klPenalties({ lossMask, policyLogprobs, referenceLogprobs: reference.logprobs }, penalty);
  const { advantages, returns } = criticAdvantages({ lossMask, sequenceOfToken, credits, values, penalties }, critic);
  return { advantages, critic: { proximalValues: values, returns } };
}

function rewardPenalty(loss: LossConfig): KlPenaltyOptions | undefined {
  if (loss.type === "dpo" || loss.klPlace === "loss") return undefined;
  return { coefficient: loss.klCoefficient, estimator: loss.klEstimator };
}

/** Values are those of the first update where no later ones are given. */
function criticRows(
  rows: readonly BatchRow[],
  targets: ReadonlyMap<BatchRow, Targets>,
  current?: ReadonlyMap<BatchRow, TokenScores>,
): ValueRow[] {
  return rows.map((each) => {
    const { lossMask } = each.row;
    const nothing = new Float32Array(lossMask.length);
    const { proximalValues, returns } = targets.get(each)?.critic ?? { proximalValues: nothing, returns: nothing };
    return { lossMask, values: current?.get(each)?.values ?? proximalValues, proximalValues, returns };
  });
}

function countActionTokens(rows: readonly BatchRow[]): number {
  return rows.reduce((sum, { row }) => row.lossMask.reduce((tokens, bit) => tokens + bit, sum), 0);
}

async function scoreSome(
  engine: Pick<Engine, "score">,
  rows: readonly BatchRow[],
): Promise<Map<BatchRow, TokenScores>> {
  if (rows.length === 0) return new Map();
  const scores = await engine.score(rows.map((each) => each.row));
  return new Map(rows.flatMap((each, at) => (scores[at] === undefined ? [] : [[each, scores[at]] as const])));
}

function lossRow(
  { row, rollout, group }: BatchRow,
  scores: {
    readonly advantages: Float64Array;
    readonly proximalLogprobs: Float32Array;
    readonly current: TokenScores | undefined;
    readonly reference: TokenScores | undefined;
  },
): LossRow {
  const { advantages, proximalLogprobs, current, reference } = scores;
  return {
    rollout,
    group,
    sequenceOfToken: row.transitionOfToken,
    lossMask: row.lossMask,
    advantages,
    behaviourLogprobs: row.isBehaviourKnown ? row.behaviourLogprobs : proximalLogprobs,
    policyLogprobs: current?.logprobs ?? proximalLogprobs,
    proximalLogprobs,
    ...(reference === undefined ? {} : { referenceLogprobs: reference.logprobs }),
    ...(current === undefined ? {} : { entropy: current.entropy }),
  };
}

/** Of what was recorded with its log-probabilities. */
function mismatchRows(rows: readonly BatchRow[], measured: ReadonlyMap<BatchRow, TokenScores>): MismatchRow[] {
  const recorded = rows.filter((each) => each.row.isBehaviourKnown);
  return recorded.map((each) => ({
    lossMask: each.row.lossMask,
    behaviourLogprobs: each.row.behaviourLogprobs,
    policyLogprobs: measured.get(each)?.logprobs ?? each.row.behaviourLogprobs,
  }));
}

/** Samples of older weights differ by right; on those of the current ones, trainer and server should agree. */
function serverMismatch(rows: readonly BatchRow[], measured: ReadonlyMap<BatchRow, TokenScores>) {
  const fresh = rows.filter((each) => each.isFresh && each.row.isBehaviourKnown);
  return fresh.length === 0 ? {} : { mismatch_kl: measureMismatch(mismatchRows(fresh, measured)).kl_behaviour };
}

function sizes(rows: readonly BatchRow[], measured: ReadonlyMap<BatchRow, TokenScores>) {
  let tokens = 0;
  let actionTokens = 0;
  let entropy = 0;
  for (const each of rows) {
    tokens += each.row.tokens.length;
    each.row.lossMask.forEach((bit, t) => {
      if (bit !== 1) return;
      actionTokens += 1;
      entropy += measured.get(each)?.entropy[t] ?? 0;
    });
  }
  return { tokens, action_tokens: actionTokens, entropy: actionTokens === 0 ? 0 : entropy / actionTokens };
}

interface UpdateReport extends LossMetrics {
  readonly critic: ValueLossResult | undefined;
  readonly grad_norm: number;
}

function meanOf(reports: readonly UpdateReport[]) {
  const mean = (pick: (report: (typeof reports)[number]) => number): number =>
    reports.reduce((sum, report) => sum + pick(report), 0) / Math.max(1, reports.length);
  return {
    loss: mean((report) => report.loss),
    clip_low_fraction: mean((report) => report.clip_low_fraction),
    clip_high_fraction: mean((report) => report.clip_high_fraction),
    kl_reference: mean((report) => report.kl_reference),
    ...(reports.some((report) => report.masked_fraction !== undefined)
      ? { masked_fraction: mean((report) => report.masked_fraction ?? 0) }
      : {}),
    ...(reports.some((report) => report.critic !== undefined)
      ? {
          value_loss: mean((report) => report.critic?.value_loss ?? 0),
          value_clip_fraction: mean((report) => report.critic?.value_clip_fraction ?? 0),
        }
      : {}),
    grad_norm: mean((report) => report.grad_norm),
  };
}
