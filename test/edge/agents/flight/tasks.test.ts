import { describe, expect, it } from "vitest";
import { makeRequest, makeTask, type Split, splitOf } from "../../../../edge/agents/flight/tasks.ts";
import { makeWorld, WHENS } from "../../../../edge/agents/flight/world.ts";

const SPLITS: readonly Split[] = ["make", "train", "val"];
const COUNT = 3000;

function combination(split: Split, index: number): string {
  const request = makeRequest(split, index);
  const preference = makeWorld(request.world).preference(request.traveller);
  return [request.traveller, request.from, request.to, preference?.when, preference?.airline].join("/");
}

describe("flight tasks", () => {
  it("are the same whenever they are made", () => {
    expect(makeTask("val", 17)).toEqual(makeTask("val", 17));
    expect(makeTask("val", 17)).not.toEqual(makeTask("val", 18));
  });

  it("share neither a world nor a combination of traveller, route and preference between splits", () => {
    const worlds = new Map<number, Split>();
    const combinations = new Map<string, Split>();
    for (const split of SPLITS) {
      for (let index = 0; index < COUNT; index++) {
        const { world } = makeTask(split, index).input;
        expect(worlds.get(world)).toBeUndefined();
        worlds.set(world, split);
        const key = combination(split, index);
        expect(combinations.get(key) ?? split).toBe(split);
        combinations.set(key, split);
      }
    }
    expect(worlds.size).toBe(3 * COUNT);
  });

  it("leave half of all combinations to making and a quarter to each other split", () => {
    const counts: Record<Split, number> = { make: 0, train: 0, val: 0 };
    for (let seed = 0; seed < 4000; seed++) {
      const world = makeWorld(seed);
      const [from = "", to = ""] = world.cities;
      const [traveller = ""] = world.travellers;
      const preference = world.preference(traveller);
      if (preference !== undefined) counts[splitOf({ traveller, from, to }, preference)] += 1;
    }
    expect(counts.make / 4000).toBeCloseTo(0.5, 1);
    expect(counts.train / 4000).toBeCloseTo(0.25, 1);
    expect(counts.val / 4000).toBeCloseTo(0.25, 1);
  });

  it("expect the flight that memory and search lead to", () => {
    for (let index = 0; index < 200; index++) {
      const { input, judge } = makeTask("train", index);
      const { traveller, from, to } = makeRequest("train", index);
      const world = makeWorld(input.world);
      const { when, airline } = JSON.parse(world.memory({ traveller })) as { when: string; airline: string };
      const found = JSON.parse(world.search({ from, to, when })) as string[];
      expect(found.find((flight) => flight.startsWith(airline))).toBe(judge.expected);
      for (const slot of [traveller, from, to]) expect(input.message).toContain(`"${slot}"`);
    }
  });

  it("cannot be guessed without memory: a right time and airline are one in sixteen", () => {
    let right = 0;
    for (let index = 0; index < 1000; index++) {
      const { input, judge } = makeTask("val", index);
      const { from, to } = makeRequest("val", index);
      const guess = makeWorld(input.world).flights(from, to, WHENS[index % 4] ?? "noon")[index % 3];
      if (guess === judge.expected) right += 1;
    }
    // 1/16 of 1,000 with a standard deviation of 7.7.
    expect(right).toBeGreaterThan(25);
    expect(right).toBeLessThan(100);
  });

  it("judge an answer by patterns that take the flight out of a well-formed one", () => {
    const { judge } = makeTask("val", 0);
    const good = `Booked "${judge.expected}".`;
    expect(new RegExp(judge.format_pattern, "u").test(good)).toBe(true);
    expect(new RegExp(judge.answer_pattern, "u").exec(good)?.[1]).toBe(judge.expected);
    expect(new RegExp(judge.format_pattern, "u").test(`${good} Enjoy!`)).toBe(false);
    expect(new RegExp(judge.answer_pattern, "u").exec("Booked nothing.")).toBeNull();
  });

  it("refuse an index that is none", () => {
    for (const index of [-1, 0.5, Number.NaN, 2 ** 28])
      expect(() => makeTask("val", index)).toThrow("wanted a task index");
  });
});
