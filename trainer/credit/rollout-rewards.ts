/** What one rollout earned: all that a credit method sees. T is the number of its transitions. */
export interface RolloutRewards {
  /** The rollout's reward R as the store has it. */
  readonly total: number;
  /** Reward of the result alone, before intermediate rewards were blended in. */
  readonly terminal: number;
  /** [T]; what the tool calls of each transition earned. */
  readonly intermediate_T: readonly number[];
  /** [T]; length of each transition's answer, where lengths are part of the reward. */
  readonly responseTokens_T?: readonly number[];
}
