import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import {
  AIRLINES,
  CITIES,
  makeWorld,
  randomStream,
  sample,
  spacedJson,
  TRAVELLERS,
  WHENS,
} from "../../../../edge/agents/flight/world.ts";

describe("a flight world", () => {
  it("has eight travellers, six cities and four airlines of the pools", () => {
    for (let seed = 0; seed < 200; seed++) {
      const world = makeWorld(seed);
      expect(new Set(world.travellers).size).toBe(8);
      expect(new Set(world.cities).size).toBe(6);
      expect(new Set(world.airlines).size).toBe(4);
      expect(TRAVELLERS).toEqual(expect.arrayContaining([...world.travellers]));
      expect(CITIES).toEqual(expect.arrayContaining([...world.cities]));
      expect(AIRLINES).toEqual(expect.arrayContaining([...world.airlines]));
    }
  });

  it("is the same for the same seed, whatever was asked before", () => {
    const [first, second] = [makeWorld(7), makeWorld(7)];
    const [from = "", to = ""] = first.cities;
    first.flights(to, from, "night");
    expect(first.flights(from, to, "noon")).toEqual(second.flights(from, to, "noon"));
    expect(first.travellers).toEqual(second.travellers);
    expect(makeWorld(8).travellers).not.toEqual(first.travellers);
  });

  it("knows preferences that its own flights can meet, at every time of day", () => {
    const world = makeWorld(3);
    const [from = "", to = ""] = world.cities;
    for (const traveller of world.travellers) {
      const airline = world.preference(traveller)?.airline ?? "none";
      for (const when of WHENS)
        expect(world.flights(from, to, when).filter((flight) => flight.startsWith(airline))).toHaveLength(1);
    }
  });

  it("has flight numbers of two digits, different at different times of day", () => {
    const world = makeWorld(3);
    const [from = "", to = ""] = world.cities;
    const lists = WHENS.map((when) => world.flights(from, to, when));
    for (const flight of lists.flat()) expect(flight).toMatch(/^[A-Z]{3}[0-9]{2}$/);
    expect(new Set(lists.map((list) => list.toSorted().join())).size).toBe(4);
  });
});

describe("the memory tool", () => {
  it("tells a known traveller's preference", () => {
    const world = makeWorld(11);
    const [traveller = ""] = world.travellers;
    const { when, airline } = world.preference(traveller) ?? { when: "", airline: "" };
    expect(world.memory({ traveller })).toBe(`{"when": "${when}", "airline": "${airline}"}`);
  });

  it("answers an error for anybody else, and for arguments of another shape", () => {
    const world = makeWorld(11);
    const stranger = TRAVELLERS.find((name) => !world.travellers.includes(name));
    for (const args of [{ traveller: stranger }, { traveller: 1 }, {}, [], null, undefined, "Ana", 3])
      expect(world.memory(args)).toBe('{"error": "unknown traveller"}');
  });
});

describe("the search tool", () => {
  it("lists the flights of a route at a time of day", () => {
    const world = makeWorld(5);
    const [from = "", to = ""] = world.cities;
    const result: unknown = JSON.parse(world.search({ from, to, when: "evening" }));
    expect(result).toEqual(world.flights(from, to, "evening"));
    expect(result).toHaveLength(4);
  });

  it("says which argument is wrong", () => {
    const world = makeWorld(5);
    const [from = "", to = ""] = world.cities;
    const elsewhere = CITIES.find((city) => !world.cities.includes(city));
    expect(world.search({ from, to: elsewhere, when: "noon" })).toBe('{"error": "unknown city"}');
    expect(world.search({ from, to: from, when: "noon" })).toBe('{"error": "no such route"}');
    expect(world.search({ from, to, when: "dawn" })).toBe('{"error": "unknown time"}');
    expect(world.search({ from, to })).toBe('{"error": "unknown time"}');
  });

  it("never throws and always answers JSON, whatever comes", () => {
    const world = makeWorld(5);
    fc.assert(
      fc.property(fc.anything(), (args) => {
        expect(() => void JSON.parse(world.search(args))).not.toThrow();
        expect(() => void JSON.parse(world.memory(args))).not.toThrow();
      }),
    );
  });
});

describe("spacedJson", () => {
  it("writes JSON that parses back, with a space after each comma and colon", () => {
    expect(spacedJson({ a: "b", c: 'd"e' })).toBe('{"a": "b", "c": "d\\"e"}');
    expect(spacedJson(["x", "y"])).toBe('["x", "y"]');
  });
});

describe("randomStream", () => {
  it("is uniform enough: each tenth of [0, 1) gets its share within five standard deviations", () => {
    const random = randomStream(1, "uniform");
    const counts = Array.from({ length: 10 }, () => 0);
    for (let draw = 0; draw < 100_000; draw++) {
      const tenth = Math.floor(random() * 10);
      counts[tenth] = (counts[tenth] ?? 0) + 1;
    }
    // Standard deviation of one count: sqrt(100,000 · 0.1 · 0.9) = 95.
    for (const count of counts) expect(Math.abs(count - 10_000)).toBeLessThan(475);
  });

  it("gives neighbouring seeds unrelated streams", () => {
    const firsts = Array.from({ length: 1000 }, (_, seed) => randomStream(seed, "x")());
    expect(new Set(firsts).size).toBe(1000);
    const mean = firsts.reduce((sum, value) => sum + value, 0) / 1000;
    expect(Math.abs(mean - 0.5)).toBeLessThan(0.05);
  });
});

describe("sample", () => {
  it("refuses to take more than there is", () => {
    expect(() => sample(["a", "b"], 3, randomStream(0, ""))).toThrow("wanted 3 members, the pool has 2");
  });
});
