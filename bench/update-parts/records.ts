/** The benchmark's rollouts as the trainer gets them from the store, and sifted as it sifts them. */

import { advantageSchema } from "../../trainer/advantage/advantage.ts";
import { PRESETS } from "../../trainer/algorithm.ts";
import { sift, type Sifted } from "../../trainer/batch/sift.ts";
import type { Engine } from "../../trainer/engine/contract.ts";
import type { CallRecord, RolloutRecord } from "../../trainer/records.ts";
import type { BatchRollout } from "./batch.ts";

/** TRL's, so that gradient norms can be compared. */
export const ADVANTAGE = advantageSchema.parse({ ...PRESETS.grpo.advantage, epsilon: 1e-4 });

/** Groups with credit and advantages. */
export function groupsOf(rollouts: readonly RolloutRecord[]): Sifted {
  return sift(rollouts, {
    credit: PRESETS.grpo.credit,
    advantage: ADVANTAGE,
    lineage: { base: 0, made: [] },
    step: 0,
    maxStaleness: 0,
  });
}

/** As the store would give them: sampled by the weights that are about to be trained. */
export async function recordsOf(
  rollouts: readonly BatchRollout[],
  policy: Pick<Engine, "score">,
): Promise<RolloutRecord[]> {
  const calls = rollouts.flatMap((rollout) => rollout.calls);
  const scores = await policy.score(
    calls.map(({ prompt, response }) => ({
      tokens: Int32Array.of(...prompt, ...response),
      lossMask: Uint8Array.from({ length: prompt.length + response.length }, (_, t) => Number(t >= prompt.length)),
    })),
  );
  let at = 0;
  return rollouts.map(({ group, reward, calls: made }, rollout) => ({
    id: `r${rollout}`,
    groupId: `g${group}`,
    taskId: null,
    reward,
    status: "finished",
    outcome: null,
    intermediate: [],
    calls: made.map(({ prompt, response }, turn): CallRecord => ({
      callId: `r${rollout}c${turn}`,
      promptTokenIds: Int32Array.from(prompt),
      responseTokenIds: Int32Array.from(response),
      behaviourLogprobs: scores[at++]?.logprobs.slice(prompt.length) ?? new Float32Array(),
      policyVersion: 0,
      trainable: true,
      role: "main",
      toolCallIds: [],
      finishReason: "stop",
      startedAt: 0,
      latencyMs: 1,
    })),
  }));
}
