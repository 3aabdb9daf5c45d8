import { unpackFloats, unpackIds } from "#shared/packed.ts";
import type { Batch } from "#shared/store/batches.ts";
import type { Call } from "#shared/store/calls.ts";
import type { Reward } from "#shared/store/rewards.ts";
import type { Attempt, Rollout } from "#shared/store/rollouts.ts";
import { snakeKeys } from "#shared/wire.ts";
import { versionName } from "#shared/words.ts";

/** Store rows as the JSON that wire.ts promises. */

export function rolloutView(rollout: Rollout): Record<string, unknown> {
  const { tenantId: _tenant, maxAttempts: _max, notBefore: _notBefore, leaseUntil: _lease, ...shown } = rollout;
  return snakeKeys(shown);
}

export function rolloutDetailView(detail: {
  readonly rollout: Rollout;
  readonly attempts: readonly Attempt[];
  readonly calls: readonly Call[];
  readonly rewards: readonly Reward[];
  readonly batch: Batch | undefined;
}): Record<string, unknown> {
  const { rollout, attempts, calls, rewards, batch } = detail;
  return {
    rollout: rolloutView(rollout),
    attempts: attempts.map(({ tenantId: _tenant, rolloutId: _rollout, ...shown }) => snakeKeys(shown)),
    calls: calls.map(callView),
    rewards: rewards.map(rewardView),
    batch: batch === undefined ? null : { id: batch.id, step: batch.step, status: batch.status },
  };
}

function callView(call: Call): Record<string, unknown> {
  const { policy, policyVersion, promptTokenIds, responseTokenIds, behaviourLogprobs } = call;
  const { tenantId: _tenant, rolloutId: _rollout, ...shown } = call;
  return {
    ...snakeKeys(shown),
    version: policy === null || policyVersion === null ? null : versionName(policy, policyVersion),
    prompt_token_ids: promptTokenIds === null ? null : [...unpackIds(promptTokenIds)],
    response_token_ids: responseTokenIds === null ? null : [...unpackIds(responseTokenIds)],
    behaviour_logprobs: behaviourLogprobs === null ? null : [...unpackFloats(behaviourLogprobs)],
  };
}

function rewardView(reward: Reward): Record<string, unknown> {
  const { tenantId: _tenant, rolloutId: _rollout, ...shown } = reward;
  return snakeKeys(shown);
}
