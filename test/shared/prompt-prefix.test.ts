import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { packIds, unpackIds } from "#shared/packed.ts";
import { cutPrompt, wholePrompts, type CutCall, type EarlierCall } from "#shared/prompt-prefix.ts";
import { promptMemory } from "../../edge/proxy/prompt-memory.ts";

const ids = (length: number, from = 0): number[] => Array.from({ length }, (_, at) => from + at);

function stored(id: string, prompt: readonly number[], response: readonly number[], earlier?: EarlierCall): CutCall {
  const { prefixCallId, prefixTokens, rest } = cutPrompt(Int32Array.from(prompt), earlier);
  return { id, prefixCallId, prefixTokens, promptTokenIds: packIds(rest), responseTokenIds: packIds(response) };
}

const earlierOf = (id: string, prompt: readonly number[], response: readonly number[]): EarlierCall => ({
  id,
  tokens: Int32Array.from([...prompt, ...response]),
});

describe("cutPrompt", () => {
  it("keeps of twenty turns over an 8,000-token context each token once", () => {
    let prompt = ids(8000);
    let earlier: EarlierCall | undefined;
    const calls: CutCall[] = [];
    const prompts: number[][] = [];
    for (let turn = 0; turn < 20; turn++) {
      const response = ids(50, 100_000 + turn * 100);
      calls.push(stored(`ca_${turn}`, prompt, response, earlier));
      prompts.push(prompt);
      earlier = earlierOf(`ca_${turn}`, prompt, response);
      prompt = [...prompt, ...response, ...ids(30, 200_000 + turn * 100)];
    }
    const bytes = calls.reduce((sum, call) => sum + (call.promptTokenIds?.byteLength ?? 0), 0);
    expect(bytes).toBe(4 * (8000 + 19 * 30));
    const whole = wholePrompts(calls.toReversed());
    expect(calls.map((call) => [...unpackIds(whole.get(call.id) ?? new Uint8Array())])).toEqual(prompts);
  });

  it("keeps a prompt whole that shares little with the call before", () => {
    const earlier = earlierOf("ca_1", ids(63), []);
    expect(cutPrompt(Int32Array.from([...ids(63), 9]), earlier)).toMatchObject({ prefixCallId: null, prefixTokens: 0 });
  });

  it("shares as far as they agree, also into the middle of the response", () => {
    const earlier = earlierOf("ca_1", ids(100), [500, 501, 502]);
    const cut = cutPrompt(Int32Array.from([...ids(100), 500, 777]), earlier);
    expect(cut).toMatchObject({ prefixCallId: "ca_1", prefixTokens: 101 });
    expect([...cut.rest]).toEqual([777]);
  });
});

describe("wholePrompts", () => {
  it("gives back what was cut, whatever the prompts", () => {
    const token = fc.integer({ min: 0, max: 1 });
    const call = fc.record({
      prompt: fc.array(token, { maxLength: 200 }),
      response: fc.array(token, { maxLength: 90 }),
      keep: fc.double({ min: 0, max: 1, noNaN: true }),
    });
    fc.assert(
      fc.property(fc.array(call, { maxLength: 8 }), (turns) => {
        let earlier: EarlierCall | undefined;
        const prompts: number[][] = [];
        const calls = turns.map(({ prompt, response, keep }, at) => {
          const begun = [...(earlier?.tokens ?? [])];
          const whole = [...begun.slice(0, Math.round(begun.length * keep)), ...prompt];
          prompts.push(whole);
          const kept = stored(String(at), whole, response, earlier);
          earlier = earlierOf(String(at), whole, response);
          return kept;
        });
        const found = wholePrompts(calls);
        expect(calls.map(({ id }) => [...unpackIds(found.get(id) ?? new Uint8Array())])).toEqual(prompts);
      }),
    );
  });

  it("leaves calls without ids alone", () => {
    const call = { id: "a", prefixCallId: null, prefixTokens: 0, promptTokenIds: null, responseTokenIds: null };
    expect(wholePrompts([call]).get("a")).toBeNull();
  });

  it("refuses a record whose beginning is gone, too short, or circular", () => {
    const cut = { prefixTokens: 70, promptTokenIds: packIds([1]), responseTokenIds: null };
    const lost = { ...cut, id: "b", prefixCallId: "a" };
    expect(() => wholePrompts([lost])).toThrow("call b begins with 70 tokens of call a, which is not there");
    const short = { ...cut, id: "a", prefixCallId: null, prefixTokens: 0 };
    expect(() => wholePrompts([lost, short])).toThrow("which has fewer tokens");
    expect(() => wholePrompts([lost, { ...cut, id: "a", prefixCallId: "b" }])).toThrow("circle");
  });
});

describe("promptMemory", () => {
  it("forgets what was remembered longest ago once it is full", () => {
    const memory = promptMemory(100);
    memory.remember("one", { id: "a", tokens: new Int32Array(10) });
    memory.remember("two", { id: "b", tokens: new Int32Array(10) });
    memory.remember("one", { id: "c", tokens: new Int32Array(10) });
    memory.remember("three", { id: "d", tokens: new Int32Array(10) });
    expect([memory.last("one")?.id, memory.last("two")?.id, memory.last("three")?.id]).toEqual(["c", undefined, "d"]);
  });
});
