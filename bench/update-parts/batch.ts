/** The batch that an update is measured on: rollouts of the size and shape that the flight task makes, of random tokens. */

import { Random } from "../../trainer/engine/random.ts";

/** One LLM call: its prompt begins with all that came before it in its rollout. */
export interface BatchCall {
  readonly prompt: readonly number[];
  readonly response: readonly number[];
}

export interface BatchRollout {
  readonly group: number;
  readonly reward: number;
  readonly calls: readonly BatchCall[];
}

/** A whole group; every one has 8 rollouts and 24 calls, since TRL wants groups of one size whatever a row is. */
export const GROUP_ROLLOUTS = 8;
export const GROUP_CALLS = 24;
/** Calls of each rollout of a group: nearly all make three, as trained flight agents do. */
const USUAL = [3, 3, 3, 3, 3, 3, 2, 4];
const RARE = [3, 3, 3, 3, 3, 2, 2, 5];

/** Tokens of flight's answers and of what the tools say to them: look up a traveller (again), search, answer. */
const LOOK_UP = { response: 16, result: 18 };
const SEARCH = { response: 24, result: 22 };
const ANSWER = 6;
const PROMPT = [65, 66, 68];

/** So many groups of rollouts, from a fixed seed. */
export function makeBatch(groups: number, vocab: number): BatchRollout[] {
  const random = Random.seeded(7);
  const below = (limit: number): number => Math.floor(random.next() * limit);
  const ids = (length: number): number[] => Array.from({ length }, () => below(vocab));
  return Array.from({ length: groups }, (_, group) => group).flatMap((group) => {
    const prompt = ids(PROMPT[group % PROMPT.length] ?? 0);
    const sizes = group % 8 === 7 ? RARE : USUAL;
    return sizes.map((size, at) => ({
      group,
      // No group is without a spread.
      reward: at === 0 ? 1 : at === 1 ? 0 : below(3) / 2,
      calls: callsOf(prompt, size, ids),
    }));
  });
}

function callsOf(first: readonly number[], size: number, ids: (length: number) => number[]): BatchCall[] {
  const calls: BatchCall[] = [];
  let prompt = [...first];
  for (let left = size; left > 0; left--) {
    const { response: tokens, result } = left > 2 ? LOOK_UP : SEARCH;
    const response = ids(left === 1 ? ANSWER : tokens);
    calls.push({ prompt, response });
    prompt = [...prompt, ...response, ...ids(result)];
  }
  return calls;
}

/** The same calls as rollouts whose prompts share no beginning: each call becomes a training row of its own. */
export function apart(rollouts: readonly BatchRollout[]): BatchRollout[] {
  return rollouts.map((rollout) => ({
    ...rollout,
    calls: rollout.calls.map(({ prompt, response }, turn) => ({ prompt: [turn, ...prompt.slice(1)], response })),
  }));
}

/** A training row as TRL takes it: `mask` is 0 where the environment spoke. */
export interface SequenceRow {
  readonly prompt: readonly number[];
  readonly completion: readonly number[];
  readonly mask: readonly number[];
  readonly reward: number;
}

/** One row a rollout: what tools said lies between the answers, masked. */
export function joinedRows(rollouts: readonly BatchRollout[]): SequenceRow[] {
  return rollouts.map(({ calls, reward }) => {
    const prompt = calls[0]?.prompt ?? [];
    const completion: number[] = [];
    const mask: number[] = [];
    for (const call of calls) {
      const said = call.prompt.slice(prompt.length + completion.length);
      completion.push(...said, ...call.response);
      mask.push(...said.map(() => 0), ...call.response.map(() => 1));
    }
    return { prompt, completion, mask, reward };
  });
}

/** One row a call. */
export function callRows(rollouts: readonly BatchRollout[]): SequenceRow[] {
  return rollouts.flatMap(({ calls, reward }) =>
    calls.map(({ prompt, response }) => ({ prompt, completion: response, mask: response.map(() => 1), reward })),
  );
}
