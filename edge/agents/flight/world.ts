/**
 * The flight agent's world: travellers with preferences, and flights between cities, generated from a seed.
 * It does not know of language models, agents or rewards.
 */

/** Times of day, the values of a preference's and a search's `when`. */
export const WHENS = ["morning", "noon", "evening", "night"] as const;

/** One of {@link WHENS}. */
export type When = (typeof WHENS)[number];

/** All airlines, by the code that starts their flight numbers; a world has four of them. */
export const AIRLINES = ["SAS", "KLM", "TAP", "LOT", "FIN", "DLH", "BAW", "IBE"] as const;

/** All cities; a world has six of them. */
export const CITIES = [
  ..."Oslo Rome Paris Lisbon Madrid Berlin Vienna Prague Warsaw Athens Dublin London Geneva Zurich Milan Naples".split(
    " ",
  ),
  ..."Porto Seville Lyon Nice Munich Hamburg Cologne Bergen Malmo Turku Riga Vilnius Tallinn Sofia Zagreb Split".split(
    " ",
  ),
] as const;

/** All first names; a world knows eight of them. */
export const TRAVELLERS = [
  ..."Ana Ben Cleo Dan Emma Finn Gina Hugo Iris Jack Kira Leo Mia Noah Olga Paul".split(" "),
  ..."Quinn Rosa Sam Tara Uma Vera Will Xena Yara Zoe Adam Bela Carl Dora Eric Faye".split(" "),
  ..."Glen Hana Ivan Jane Kurt Lena Mark Nina Otto Petra Ralf Sara Tom Ulla Victor Wanda".split(" "),
  ..."Alan Berta Cora David Elsa Fred Greta Hans Ida Josef Karla Luis Marta Nils Oscar Pia".split(" "),
] as const;

/** What a traveller wants: the time of day and the airline. */
export interface Preference {
  readonly when: When;
  readonly airline: string;
}

/** One generated world. Its tools take whatever a model sent and never throw: bad arguments give `{"error": …}`. */
export interface World {
  readonly travellers: readonly string[];
  readonly cities: readonly string[];
  readonly airlines: readonly string[];
  /** The preference of a traveller, or undefined for one whom this world does not know. */
  preference(traveller: string): Preference | undefined;
  /** The flights of a route at a time of day, one per airline, as `SAS12`. Cities must be of this world. */
  flights(from: string, to: string, when: When): readonly string[];
  /** Tool `memory`: `{"traveller": …}` → JSON `{"when": …, "airline": …}`. */
  memory(args: unknown): string;
  /** Tool `search`: `{"from": …, "to": …, "when": …}` → JSON list of flight numbers. */
  search(args: unknown): string;
}

/** The agent's system prompt: says what the job is, not how to do it. */
export const SYSTEM = "You book flights that suit the traveller.";

/** The agent's tools in the OpenAI format. */
export const TOOLS = [
  {
    type: "function",
    function: {
      name: "memory",
      description: "what a traveller prefers",
      parameters: {
        type: "object",
        properties: { traveller: { type: "string" } },
        required: ["traveller"],
      },
    },
  },
  {
    type: "function",
    function: {
      name: "search",
      description: "flights at a time of day",
      parameters: {
        type: "object",
        properties: { from: { type: "string" }, to: { type: "string" }, when: { type: "string", enum: [...WHENS] } },
        required: ["from", "to", "when"],
      },
    },
  },
] as const;

/**
 * The world of a seed; the same seed gives the same world everywhere.
 * @param seed an integer of 32 bits; others are taken modulo 2³²
 */
export function makeWorld(seed: number): World {
  const random = randomStream(seed, "world");
  const travellers = sample(TRAVELLERS, 8, random);
  const cities = sample(CITIES, 6, random);
  const airlines = sample(AIRLINES, 4, random);
  const preferences = new Map<string, Preference>(
    travellers.map((traveller) => [traveller, { when: pick(WHENS, random), airline: pick(airlines, random) }]),
  );

  function flights(from: string, to: string, when: When): readonly string[] {
    const routeRandom = randomStream(seed, `${from}/${to}/${when}`);
    return sample(airlines, airlines.length, routeRandom).map(
      (airline) => airline + String(Math.floor(routeRandom() * 100)).padStart(2, "0"),
    );
  }

  return {
    travellers,
    cities,
    airlines,
    preference: (traveller) => preferences.get(traveller),
    flights,
    memory(args) {
      const preference = preferences.get(field(args, "traveller"));
      return spacedJson(preference ?? { error: "unknown traveller" });
    },
    search(args) {
      const from = field(args, "from");
      const to = field(args, "to");
      const when = WHENS.find((known) => known === field(args, "when"));
      if (!cities.includes(from) || !cities.includes(to)) return spacedJson({ error: "unknown city" });
      if (from === to) return spacedJson({ error: "no such route" });
      if (when === undefined) return spacedJson({ error: "unknown time" });
      return spacedJson(flights(from, to, when));
    },
  };
}

/**
 * A stream of numbers in [0, 1) that depends on nothing but its seed and name (FNV-1a of the name, then splitmix32).
 * Good enough for toy worlds, not for cryptography.
 */
export function randomStream(seed: number, name: string): () => number {
  let state = hash32(name) ^ Math.imul(seed, 0x9e3779b1);
  return () => {
    state = (state + 0x9e3779b9) | 0;
    let mixed = state ^ (state >>> 16);
    mixed = Math.imul(mixed, 0x21f0aaad);
    mixed ^= mixed >>> 15;
    mixed = Math.imul(mixed, 0x735a2d97);
    mixed ^= mixed >>> 15;
    return (mixed >>> 0) / 2 ** 32;
  };
}

/** FNV-1a over UTF-16 code units, 32 bits. */
export function hash32(text: string): number {
  let hash = 0x811c9dc5;
  for (let index = 0; index < text.length; index++) hash = Math.imul(hash ^ text.charCodeAt(index), 0x01000193);
  return hash >>> 0;
}

/** One member of a non-empty pool. */
export function pick<T>(pool: readonly T[], random: () => number): T {
  const chosen = pool[Math.floor(random() * pool.length)];
  if (chosen === undefined) throw new RangeError("wanted a non-empty pool to pick from, got an empty one");
  return chosen;
}

/** `count` different members of a pool, in random order. */
export function sample<T>(pool: readonly T[], count: number, random: () => number): T[] {
  const rest = [...pool];
  return Array.from({ length: count }, () => {
    const [chosen] = rest.splice(Math.floor(random() * rest.length), 1);
    if (chosen === undefined) throw new RangeError(`wanted ${count} members, the pool has ${pool.length}`);
    return chosen;
  });
}

/**
 * JSON of a flat list or record of strings with a space after each comma and colon, as Python and chat templates
 * write it: what a tool returns and what a model copies from it are then the same tokens.
 */
export function spacedJson(value: readonly string[] | Readonly<Record<string, string>> | Preference): string {
  if (isList(value)) return `[${value.map((item) => JSON.stringify(item)).join(", ")}]`;
  const members = Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${JSON.stringify(item)}`);
  return `{${members.join(", ")}}`;
}

function isList(value: object): value is readonly string[] {
  return Array.isArray(value);
}

function field(args: unknown, name: string): string {
  if (typeof args !== "object" || args === null || !Object.hasOwn(args, name)) return "";
  const value: unknown = Reflect.get(args, name);
  return typeof value === "string" ? value : "";
}
