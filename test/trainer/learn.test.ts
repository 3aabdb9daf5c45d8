import { describe, expect, it } from "vitest";
import { sift } from "../../trainer/batch/sift.ts";
import type { Cotangent, Sample } from "../../trainer/engine/contract.ts";
import { learn, type LearnOptions } from "../../trainer/learn.ts";
import { advantageSchema } from "../../trainer/advantage/advantage.ts";
import { PRESETS } from "../../trainer/algorithm.ts";
import { lossSchema } from "../../trainer/loss/loss.ts";
import type { RolloutRecord } from "../../trainer/records.ts";

/** An engine that assigns one log-probability to everything and notes what is asked of it; its critic expects `value`. */
function noting(logprob: number, value?: number) {
  const scored: number[][] = [];
  const pulled: { tokens: number[]; d: number[]; dEntropy: number[] | undefined; dValues: number[] | undefined }[] = [];
  const steps: number[] = [];
  const scoresOf = (samples: readonly Sample[]) =>
    samples.map(({ lossMask }) => ({
      logprobs: Float32Array.from(lossMask, (bit) => bit * logprob),
      entropy: Float32Array.from(lossMask, (bit) => bit * 0.25),
      ...(value === undefined ? {} : { values: Float32Array.from(lossMask, (bit) => bit * value) }),
    }));
  return {
    scored,
    pulled,
    steps,
    score: async (samples: readonly Sample[]) => {
      scored.push(...samples.map((sample) => [...sample.tokens]));
      return scoresOf(samples);
    },
    backward: async (samples: readonly Sample[], cotangents: readonly Cotangent[]) => {
      for (const [at, sample] of samples.entries()) {
        const { dLogprobs = new Float32Array(), dEntropy, dValues } = cotangents[at] ?? {};
        pulled.push({
          tokens: [...sample.tokens],
          d: [...dLogprobs],
          dEntropy: dEntropy === undefined ? undefined : [...dEntropy],
          dValues: dValues === undefined ? undefined : [...dValues],
        });
      }
      return scoresOf(samples);
    },
    step: async ({ learningRate }: { readonly learningRate: number }) => {
      steps.push(learningRate);
      return { gradNorm: 0.5 };
    },
  };
}

/** Two groups of two; the second is a version older. Behaviour log-probability −1, one action token each. */
function groups(step = 3) {
  const record = (id: number, groupId: string, reward: number, policyVersion: number): RolloutRecord => ({
    id: `r${id}`,
    groupId,
    taskId: null,
    reward,
    status: "finished",
    outcome: null,
    intermediate: [],
    calls: [
      {
        callId: `c${id}`,
        promptTokenIds: Int32Array.of(1),
        responseTokenIds: Int32Array.of(10 + id),
        behaviourLogprobs: Float32Array.of(-1),
        policyVersion,
        trainable: true,
        role: "main",
        finishReason: "stop",
        toolCallIds: [],
        startedAt: 0,
        latencyMs: 1,
      },
    ],
  });
  return sift([record(0, "a", 1, 3), record(1, "a", 0, 3), record(2, "b", 1, 2), record(3, "b", 0, 2)], {
    credit: { type: "identical" },
    advantage: { type: "group-mean" },
    lineage: { base: 0, made: [1, 2, 3, 4, 5, 6, 7, 8, 9] },
    step,
    maxStaleness: 1,
  }).groups;
}

function options(engine: LearnOptions["engine"], given: Partial<LearnOptions> = {}): LearnOptions {
  let clock = 0;
  return {
    engine,
    loss: lossSchema.parse({ type: "ppo-clip" }),
    learningRate: 0.01,
    maxGradNorm: 1,
    updates: 1,
    now: () => (clock += 500),
    ...given,
  };
}

describe("learn", () => {
  it("scores only what an older version sampled, and weighs that by what it finds", async () => {
    const engine = noting(-1 + Math.log(1.5));
    const report = await learn(groups(), options(engine));
    expect(engine.scored).toEqual([
      [1, 12],
      [1, 13],
    ]);
    // Advantages ±1/2 over 4 action tokens; stale rows by the importance ratio of 1.5.
    expect(engine.pulled.map(({ tokens, d }) => [tokens[1], d[1]?.toFixed(5)])).toEqual([
      [10, "-0.12500"],
      [11, "0.12500"],
      [12, "-0.18750"],
      [13, "0.18750"],
    ]);
    expect(engine.steps).toEqual([0.01]);
    // All rows are compared with what the engine assigned, the fresh ones too.
    expect(report.importance_weight_mean).toBeCloseTo(1.5, 5);
    // k3 of the ratio 1.5, which the fresh rows should not have: 0.5 − ln 1.5.
    expect(report.mismatch_kl).toBeCloseTo(0.5 - Math.log(1.5), 5);
    expect(report).toMatchObject({ rows: 4, tokens: 8, action_tokens: 4, entropy: 0.25, grad_norm: 0.5, seconds: 0.5 });
  });

  it("scores what the current weights sampled too where inference rounds, and weighs it by what that changed", async () => {
    const engine = noting(-1 + Math.log(1.5));
    const report = await learn(groups(), options(engine, { isServedExactly: false }));
    expect(engine.scored.map((tokens) => tokens[1])).toEqual([10, 11, 12, 13]);
    // Advantages ±1/2 over 4 action tokens, all of them by the ratio of 1.5.
    expect(engine.pulled.map(({ d }) => d[1]?.toFixed(5))).toEqual(["-0.18750", "0.18750", "-0.18750", "0.18750"]);
    expect(report.mismatch_kl).toBeCloseTo(0.5 - Math.log(1.5), 5);
  });

  it("scores what was recorded without log-probabilities, and takes it for no measure of the server", async () => {
    const known = groups(3);
    const unknown = known.map((group) => ({
      ...group,
      rollouts: group.rollouts.map((rollout) => {
        const rows = rollout.trajectory.rows.map((row) =>
          row.tokens[1] === 11
            ? { ...row, isBehaviourKnown: false, behaviourLogprobs: new Float32Array(row.tokens.length) }
            : row,
        );
        return { ...rollout, trajectory: { ...rollout.trajectory, rows } };
      }),
    }));
    const engine = noting(-1);
    const report = await learn(unknown, options(engine, { loss: lossSchema.parse({ type: "sft", imitate: "all" }) }));
    // Tokens 12 and 13 are a version old.
    expect(engine.scored.map((tokens) => tokens[1])).toEqual([11, 12, 13]);
    expect(engine.pulled.map(({ d }) => d[1])).toEqual([-0.25, -0.25, -0.25, -0.25]);
    // −log π of what the engine says, the unknown row's among them.
    expect(report.loss).toBeCloseTo(1, 6);
    expect(report).toMatchObject({ mismatch_kl: 0, kl_behaviour: 0, importance_weight_max: 1 });
  });

  it("pulls less where groups are missing from the batch: they count as ones that pull at nothing", async () => {
    const whole = noting(-1);
    await learn(groups(3), options(whole));
    const part = noting(-1);
    await learn(groups(3).slice(0, 1), options(part, { fullness: 0.5 }));
    // The first group's two tokens pull as they do beside another group's two that are all of one reward.
    expect(whole.pulled.slice(0, 2).map(({ d }) => d[1])).toEqual([-0.125, 0.125]);
    expect(part.pulled.map(({ d }) => d[1])).toEqual([-0.125, 0.125]);
  });

  it("scores everything first when a batch is used for several updates, which share its groups", async () => {
    const engine = noting(-1);
    await learn(groups(), options(engine, { updates: 2 }));
    // All four at first, and the second update's two again under the weights after the first.
    expect(engine.scored.map((tokens) => tokens[1])).toEqual([10, 11, 12, 13, 12, 13]);
    expect(engine.pulled.map(({ tokens }) => tokens[1])).toEqual([10, 11, 12, 13]);
    expect(engine.steps).toHaveLength(2);
  });

  it("does not know what trainer and server disagree by, where no sample is of the current weights", async () => {
    expect(await learn(groups(4), options(noting(-1)))).not.toHaveProperty("mismatch_kl");
    expect(await learn(groups(3), options(noting(-1)))).toHaveProperty("mismatch_kl", 0);
  });

  it("takes no more updates than there are groups", async () => {
    const engine = noting(-1);
    await learn(groups(), options(engine, { updates: 9 }));
    expect(engine.steps).toHaveLength(2);
  });

  it("asks the reference for a KL term, and pulls entropies for a bonus", async () => {
    const engine = noting(-1);
    const reference = noting(-1 + Math.LN2);
    const loss = lossSchema.parse({ type: "reinforce", klCoefficient: 0.4, entropyBonus: 0.1 });
    const report = await learn(groups(), options(engine, { reference, loss }));
    expect(reference.scored).toHaveLength(4);
    expect(report.kl_reference).toBeCloseTo(1 - Math.LN2, 6);
    // −A/4 from the surrogate and 0.4·(1 − 2)/4 from the KL term.
    expect(engine.pulled[0]?.d[1]).toBeCloseTo(-0.125 - 0.1, 6);
    expect(engine.pulled[0]?.dEntropy?.[1]).toBeCloseTo(-0.1 / 4, 7);
  });

  it("takes the KL divergence off the advantages before it normalises them over the batch", async () => {
    const engine = noting(-1);
    // The policy is twice as likely as the reference to say everything: k1 is ln 2 on each of the four tokens.
    const reference = noting(-1 - Math.LN2);
    const given = { type: "ppo-clip", klCoefficient: 1, klEstimator: "k1", klPlace: "reward" };
    const loss = lossSchema.parse(given);
    const report = await learn(groups(), options(engine, { reference, loss }));
    // Advantages ±1/2 less ln 2, over 4 action tokens, and nothing of the KL term in the loss itself.
    const wanted = [0.5, -0.5, 0.5, -0.5].map((advantage) => -(advantage - Math.LN2) / 4);
    engine.pulled.forEach(({ d }, at) => expect(d[1]).toBeCloseTo(wanted[at] ?? NaN, 6));
    expect(report.kl_reference).toBeCloseTo(Math.LN2 - 0.5, 6);

    const normal = noting(-1);
    const advantage = advantageSchema.parse({ type: "batch-mean-std", epsilon: 0 });
    await learn(groups(), options(normal, { reference: noting(-1 - Math.LN2), loss, advantage }));
    // ±1/2 − ln 2 has mean −ln 2 and sample variance 1/3: ±√3/2, over 4.
    normal.pulled.forEach(({ d }, at) => expect(d[1]).toBeCloseTo(((at % 2 === 0 ? -1 : 1) * Math.sqrt(3)) / 8, 6));
  });

  it("normalises over the whole batch, also where its updates see parts of it", async () => {
    const engine = noting(-1);
    const advantage = advantageSchema.parse({ type: "batch-mean-std", epsilon: 0 });
    const [a, b] = groups();
    if (a === undefined || b === undefined) throw new Error("no groups");
    const raised = { ...b, rollouts: b.rollouts.map((each) => ({ ...each, advantages_T: Float64Array.of(3.5) })) };
    await learn([a, raised], options(engine, { updates: 2, advantage }));
    // 0.5, −0.5, 3.5, 3.5: mean 1.75, so that all of the second group is better than average.
    const signs = engine.pulled.map(({ d }) => Math.sign(d[1] ?? NaN));
    expect(signs).toEqual([1, 1, -1, -1]);
  });

  it("weighs a token the same in every update with batch-mean, and by its update's own tokens with token-mean", async () => {
    const [a, b] = groups();
    if (a === undefined || b === undefined) throw new Error("no groups");
    const small = { ...b, rollouts: b.rollouts.slice(0, 1) };
    const pulls = async (aggregation: string) => {
      const engine = noting(-1);
      const loss = lossSchema.parse({ type: "reinforce", aggregation });
      await learn([a, small], options(engine, { updates: 2, loss }));
      return engine.pulled.map(({ d }) => Math.abs(d[1] ?? NaN));
    };
    // Updates of 2 and 1 tokens, 1.5 on average; advantages ±1/2.
    (await pulls("batch-mean")).forEach((pull) => expect(pull).toBeCloseTo(0.5 / 1.5, 6));
    expect(await pulls("token-mean")).toEqual([0.25, 0.25, 0.5]);
  });

  it("pairs the rollouts of a group for a preference, and not those of others", async () => {
    const engine = noting(-1);
    const loss = lossSchema.parse({ type: "dpo", klCoefficient: 0.5 });
    const report = await learn(groups(), options(engine, { reference: noting(-1), loss }));
    expect(report.loss).toBeCloseTo(Math.LN2, 6);
    // β·σ(0) over two pairs.
    expect(engine.pulled.map(({ d }) => d[1])).toEqual([-0.125, 0.125, -0.125, 0.125]);
  });

  it("compares credit with the critic's values, pulls these to the returns, and says how well they did", async () => {
    const advantage = advantageSchema.parse({ type: "gae", epsilon: 0, value: { coefficient: 0.5, clip: 0.2 } });
    const engine = noting(-1, 0.25);
    const report = await learn(groups(), options(engine, { advantage }));
    // All rows are scored: values come of nothing else.
    expect(engine.scored).toHaveLength(4);
    // The groups' own ±1/2 as credit, less 0.25: mean −0.25, sample variance 1/3, over 4 action tokens.
    const wanted = [-1, 1, -1, 1].map((sign) => (sign * Math.sqrt(3)) / 8);
    engine.pulled.forEach(({ d }, at) => expect(d[1]).toBeCloseTo(wanted[at] ?? NaN, 6));
    // ½·(V − G)/4 with returns of ±1/2.
    engine.pulled.forEach(({ dValues }, at) =>
      expect(dValues?.[1]).toBeCloseTo(at % 2 === 0 ? -0.25 / 8 : 0.75 / 8, 7),
    );
    expect(report.value_loss).toBeCloseTo((0.25 ** 2 + 0.75 ** 2) / 4, 7);
    expect(report).toMatchObject({ value_clip_fraction: 0, explained_variance: 0 });
  });

  it("makes the KL penalty a reward of each token, which the critic's values see too", async () => {
    const advantage = advantageSchema.parse({ type: "gae", epsilon: 0, value: { coefficient: 1, clip: 1 } });
    const loss = lossSchema.parse({ type: "ppo-clip", klCoefficient: 1, klEstimator: "k1", klPlace: "reward" });
    const engine = noting(-1, 0);
    await learn(groups(), options(engine, { advantage, loss, reference: noting(-1 - Math.LN2) }));
    engine.pulled.forEach(({ dValues }, at) =>
      expect(dValues?.[1]).toBeCloseTo(-((at % 2 === 0 ? 0.5 : -0.5) - Math.LN2) / 4, 6),
    );
  });

  it("bounds how far several updates move a value from where the batch found it", async () => {
    const advantage = advantageSchema.parse({ type: "gae", value: { coefficient: 1, clip: 0.2 } });
    const engine = noting(-1, 0);
    // From the second scoring on, the first update has moved every value by 0.3: past the clip.
    let scorings = 0;
    const moving = {
      ...engine,
      score: async (samples: readonly Sample[]) => {
        scorings += 1;
        return scorings === 1 ? engine.score(samples) : noting(-1, 0.3).score(samples);
      },
    };
    const report = await learn(groups(), options(moving, { advantage, updates: 2 }));
    // In the second update one return is above the value, whose way there ends; the other is below, and pulls back.
    const second = engine.pulled.slice(2).map(({ dValues }) => dValues?.[1]);
    expect(second[0]).toBe(0);
    expect(second[1]).toBeCloseTo((0.3 + 0.5) / 2, 6);
    expect(report.value_clip_fraction).toBe(0.25);
  });

  it("refuses a critic that the engine does not have", async () => {
    const advantage = advantageSchema.parse({ type: "gae" });
    await expect(learn(groups(), options(noting(-1), { advantage }))).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringContaining("valueHead"),
    });
  });

  it("takes the answers of a row as sequences of their own", async () => {
    const engine = noting(-1);
    const loss = lossSchema.parse({ type: "reinforce", aggregation: "sequence-mean" });
    const [group] = groups();
    const [first] = group?.rollouts ?? [];
    if (group === undefined || first === undefined) throw new Error("no rollout");
    const row = {
      tokens: Int32Array.of(1, 2, 3, 4, 5),
      lossMask: Uint8Array.of(0, 1, 1, 0, 1),
      behaviourLogprobs: Float32Array.of(0, -1, -1, 0, -1),
      isBehaviourKnown: true,
      transitionOfToken: Int32Array.of(-1, 0, 0, -1, 1),
    };
    const two = { ...first, trajectory: { ...first.trajectory, rows: [row] }, advantages_T: Float64Array.of(1, -1) };
    await learn([{ ...group, rollouts: [two] }], options(engine, { loss }));
    // Two sequences: one of two tokens, one of one.
    expect(engine.pulled[0]?.d).toEqual([0, -0.25, -0.25, 0, 0.5]);
  });

  it.each(Object.entries(PRESETS))("%s: pulls every good rollout up and every bad one down", async (_, algorithm) => {
    const engine = noting(-1, 0);
    const { loss, advantage } = algorithm;
    const report = await learn(groups(), options(engine, { reference: noting(-1), loss, advantage }));
    // Imitation says nothing of what it does not imitate.
    const bad = loss.type === "sft" ? 0 : 1;
    expect(engine.pulled.map(({ d }) => Math.sign(d[1] ?? NaN))).toEqual([-1, bad, -1, bad]);
    expect(Object.values(report).every(Number.isFinite)).toBe(true);
  });
});
