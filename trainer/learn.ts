import type { Cotangent, Engine, TokenScores } from "./engine/contract.ts";
import type { SiftedGroup, TrainingRollout } from "./batch/sift.ts";
import type { Row } from "./batch/trajectories.ts";
import { normaliseBatch, type AdvantageConfig } from "./advantage/advantage.ts";
import { penaliseKl } from "./advantage/kl-penalty.ts";
import { computeLoss, type LossConfig, type LossMetrics } from "./loss/loss.ts";
import type { LossRow } from "./loss/loss-row.ts";
import { measureMismatch, type Mismatch } from "./loss/mismatch.ts";

/** What the update of one step needs. */
export interface LearnOptions {
  readonly engine: Pick<Engine, "score" | "backward" | "step">;
  /** Scores under the weights that training began with; needed where the loss has a KL term. */
  readonly reference?: Pick<Engine, "score"> | undefined;
  readonly loss: LossConfig;
  /** How the groups' advantages are normalised over the batch; absent means that they are final. */
  readonly advantage?: AdvantageConfig | undefined;
  readonly learningRate: number;
  readonly maxGradNorm: number;
  readonly updates: number;
  readonly now: () => number;
}

/** Explained in docs/METRICS.md. */
export interface LearnReport extends Mismatch, LossMetrics {
  readonly entropy: number;
  readonly grad_norm: number;
  readonly rows: number;
  readonly tokens: number;
  readonly action_tokens: number;
  /** In the engine. */
  readonly seconds: number;
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
 * One batch → optimizer updates: score where the sampling weights were others, loss, pull, step.
 *
 * A row that the current weights sampled needs no scoring before its first update: its importance ratio is 1 but for
 * rounding, so the recorded log-probabilities are the policy's. Rows of older versions are scored, and with several
 * updates all rows are. What the engine really assigns comes back from the pull and is reported against what was
 * recorded: if training and inference ever disagree, `kl_behaviour` shows it.
 */
export async function learn(groups: readonly SiftedGroup[], options: LearnOptions): Promise<LearnReport> {
  const { engine, reference, loss, advantage, learningRate, maxGradNorm, updates, now } = options;
  const startedAt = now();
  const parts = dealGroups(groups, updates).map((part) => batchRows(part));
  const all = parts.flat();
  const scored = await scoreSome(
    engine,
    all.filter((each) => updates > 1 || !each.isFresh),
  );
  const proximal = (each: BatchRow): Float32Array => scored.get(each)?.logprobs ?? each.row.behaviourLogprobs;
  const referenceScores = reference === undefined ? new Map<BatchRow, TokenScores>() : await scoreSome(reference, all);

  const advantages = finalAdvantages(
    all.map((each) => ({ each, policyLogprobs: proximal(each), reference: referenceScores.get(each) })),
    { loss, advantage },
  );
  const tokensPerUpdate = countActionTokens(all) / parts.length;

  const measured = new Map<BatchRow, TokenScores>();
  const reports: (LossMetrics & { readonly grad_norm: number })[] = [];
  for (const [update, part] of parts.entries()) {
    // The first update starts from the weights that were scored; later ones have moved on.
    const current = update === 0 ? undefined : await scoreSome(engine, part);
    const result = computeLoss(
      part.map((each) =>
        lossRow(each, {
          advantages: advantages.get(each) ?? each.advantages,
          proximalLogprobs: proximal(each),
          current: current?.get(each),
          reference: referenceScores.get(each),
        }),
      ),
      loss,
      { tokensPerUpdate },
    );
    const cotangents: Cotangent[] = part.map((each, at) => ({
      dLogprobs: result.dLogprobs[at] ?? new Float32Array(each.row.tokens.length),
      ...(result.dEntropy?.[at] === undefined ? {} : { dEntropy: result.dEntropy[at] }),
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
    reports.push({ ...result.metrics, grad_norm: gradNorm });
  }
  return {
    ...meanOf(reports),
    ...measureMismatch(
      all.map((each) => ({
        lossMask: each.row.lossMask,
        behaviourLogprobs: each.row.behaviourLogprobs,
        policyLogprobs: measured.get(each)?.logprobs ?? each.row.behaviourLogprobs,
      })),
    ),
    ...sizes(all, measured),
    rows: all.length,
    seconds: (now() - startedAt) / 1000,
  };
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
  readonly reference: TokenScores | undefined;
}

/** The advantages that the losses of all updates see: those of the groups, less the KL penalty, over the whole batch. */
function finalAdvantages(
  rows: readonly ScoredRow[],
  { loss, advantage }: Pick<LearnOptions, "loss" | "advantage">,
): Map<BatchRow, Float64Array> {
  const penalised = rows.map(({ each, policyLogprobs, reference }) => {
    const { row, advantages } = each;
    if (loss.type === "dpo" || loss.klPlace === "loss" || reference === undefined) return advantages;
    const { lossMask, transitionOfToken: sequenceOfToken } = row;
    return penaliseKl(
      { lossMask, advantages, sequenceOfToken, policyLogprobs, referenceLogprobs: reference.logprobs },
      { coefficient: loss.klCoefficient, estimator: loss.klEstimator },
    );
  });
  const withMask = rows.map(({ each }, at) => ({
    lossMask: each.row.lossMask,
    advantages: penalised[at] ?? each.advantages,
  }));
  const final = advantage === undefined ? penalised : normaliseBatch(withMask, advantage);
  return new Map(rows.map(({ each }, at) => [each, final[at] ?? each.advantages]));
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
    behaviourLogprobs: row.behaviourLogprobs,
    policyLogprobs: current?.logprobs ?? proximalLogprobs,
    proximalLogprobs,
    ...(reference === undefined ? {} : { referenceLogprobs: reference.logprobs }),
    ...(current === undefined ? {} : { entropy: current.entropy }),
  };
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

function meanOf(reports: readonly (LossMetrics & { readonly grad_norm: number })[]) {
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
    grad_norm: mean((report) => report.grad_norm),
  };
}
