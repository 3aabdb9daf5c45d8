import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { buildTrajectory, oldestVersion, type RecordedCall } from "../../../trainer/batch/trajectories.ts";

function call(prompt: readonly number[], response: readonly number[], given: Partial<RecordedCall> = {}): RecordedCall {
  return {
    callId: `ca_${prompt.length}_${response.length}`,
    promptTokenIds: Int32Array.from(prompt),
    responseTokenIds: Int32Array.from(response),
    behaviourLogprobs: Float32Array.from(response, (_, at) => -0.5 * (at + 1)),
    policyVersion: 3,
    trainable: true,
    ...given,
  };
}

describe("buildTrajectory", () => {
  it("lays the calls of one conversation end to end, with the loss on the responses only", () => {
    const { rows, merges, transitions } = buildTrajectory([
      call([1, 2], [10, 11]),
      call([1, 2, 10, 11, 3], [12]),
      call([1, 2, 10, 11, 3, 12, 4, 5], [13, 14]),
    ]);
    expect(rows).toEqual([
      {
        tokens: Int32Array.of(1, 2, 10, 11, 3, 12, 4, 5, 13, 14),
        lossMask: Uint8Array.of(0, 0, 1, 1, 0, 1, 0, 0, 1, 1),
        behaviourLogprobs: Float32Array.of(0, 0, -0.5, -1, 0, -0.5, 0, 0, -0.5, -1),
        isBehaviourKnown: true,
        transitionOfToken: Int32Array.of(-1, -1, 0, 0, -1, 1, -1, -1, 2, 2),
      },
    ]);
    expect(merges).toBe(2);
    expect(transitions).toHaveLength(3);
  });

  it("opens a new row where a prompt is not the row so far and more, and says why", () => {
    const { rows, merges, breaks } = buildTrajectory([
      call([1, 2], [10, 11]),
      call([1, 2, 99, 11, 3], [12]),
      call([7], [13]),
    ]);
    expect(rows.map((row) => [...row.tokens])).toEqual([
      [1, 2, 10, 11],
      [1, 2, 99, 11, 3, 12],
      [7, 13],
    ]);
    expect(merges).toBe(0);
    expect(breaks).toEqual({ prompt_diverged: 1, prompt_shorter: 1 });
  });

  it("follows two conversations at once", () => {
    const { rows, merges } = buildTrajectory([
      call([1], [10]),
      call([2], [20]),
      call([1, 10, 5], [11]),
      call([2, 20, 5], [21]),
    ]);
    expect(rows.map((row) => [...row.tokens])).toEqual([
      [1, 10, 5, 11],
      [2, 20, 5, 21],
    ]);
    expect(merges).toBe(2);
  });

  it("leaves out calls that cannot be trained on, counted by reason", () => {
    const { transitions, skipped, rows } = buildTrajectory([
      call([1], [2], { trainable: false }),
      call([1], [2], { promptTokenIds: null }),
      call([1], [2], { behaviourLogprobs: null }),
      call([1], []),
      call([1], [2, 3], { behaviourLogprobs: Float32Array.of(-1) }),
      call([1], [2], { policyVersion: null }),
      call([1], [9]),
    ]);
    expect(skipped).toEqual({ untrainable: 1, no_token_ids: 1, empty_response: 1, logprob_count: 2, no_version: 1 });
    expect(transitions).toHaveLength(1);
    expect(rows.map((row) => [...row.tokens])).toEqual([[1, 9]]);
  });

  it("keeps calls without log-probabilities for whoever needs none, and says which rows have them", () => {
    const calls = [
      call([1], [2, 3], { behaviourLogprobs: null }),
      call([1, 2, 3, 4], [5]),
      call([6], [7, 8], { behaviourLogprobs: Float32Array.of(-1) }),
      call([9], [10]),
    ];
    expect(buildTrajectory(calls).skipped).toEqual({ logprob_count: 2 });
    const { rows, skipped, merges } = buildTrajectory(calls, { needsLogprobs: false });
    expect(skipped).toEqual({});
    expect(merges).toBe(1);
    expect(rows.map(({ tokens, isBehaviourKnown }) => [[...tokens], isBehaviourKnown])).toEqual([
      [[1, 2, 3, 4, 5], false],
      [[6, 7, 8], false],
      [[9, 10], true],
    ]);
    expect([...(rows[0]?.behaviourLogprobs ?? [])]).toEqual([0, 0, 0, 0, -0.5]);
  });

  it("trains on every response token exactly once and never on a first token, whatever the calls", () => {
    const ids = fc.array(fc.integer({ min: 0, max: 2 }), { minLength: 1, maxLength: 6 });
    fc.assert(
      fc.property(fc.array(fc.tuple(ids, ids), { maxLength: 6 }), (turns) => {
        const { rows, transitions, merges } = buildTrajectory(
          turns.map(([prompt, response]) => call(prompt, response)),
        );
        const trained = rows.flatMap((row) => [...row.lossMask]).reduce((sum, bit) => sum + bit, 0);
        expect(trained).toBe(turns.reduce((sum, [, response]) => sum + response.length, 0));
        expect(rows.every((row) => row.lossMask[0] === 0)).toBe(true);
        expect(rows.length + merges).toBe(turns.length);
        // Each transition's tokens stand in its row as they were recorded, after its whole prompt.
        for (const [index, transition] of transitions.entries()) {
          const row = rows.find((each) => each.transitionOfToken.includes(index));
          const from = row?.transitionOfToken.indexOf(index) ?? -1;
          expect([...(row?.tokens.subarray(0, from) ?? [])]).toEqual([...transition.prompt]);
          expect([...(row?.tokens.subarray(from, from + transition.response.length) ?? [])]).toEqual([
            ...transition.response,
          ]);
        }
      }),
    );
  });
});

describe("oldestVersion", () => {
  it("is the lowest version of any call", () => {
    const { transitions } = buildTrajectory([
      call([1], [2], { policyVersion: 5 }),
      call([1, 2, 3], [4], { policyVersion: 4 }),
    ]);
    expect(oldestVersion(transitions)).toBe(4);
    expect(oldestVersion([])).toBeUndefined();
  });
});
