/** Tasks for the flight agent, and what tells a right answer from a wrong one. */

import { hash32, makeWorld, pick, randomStream, sample, type Preference } from "./world.ts";

/**
 * Who may see a task: `make` for making the built-in model, `train` for reinforcement learning, `val` for evaluation.
 * No two share a world (the world number's top bits) or a combination of traveller, route and preference (its hash).
 */
export type Split = "make" | "train" | "val";

/** A task as the store keeps it: `input` goes to the agent, `judge` to the edge's generic judge. */
export interface FlightTask {
  readonly id: string;
  readonly input: { readonly message: string; readonly world: number };
  readonly judge: {
    /** The only right flight number. */
    readonly expected: string;
    /** Regular expression whose first group is the answered flight number. */
    readonly answer_pattern: string;
    /** Regular expression that a well-formed answer matches from start to end. */
    readonly format_pattern: string;
  };
}

/** A task before it is put into words. */
export interface FlightRequest {
  readonly world: number;
  readonly traveller: string;
  readonly from: string;
  readonly to: string;
}

const WORLDS_PER_SPLIT = 2 ** 28;
const FIRST_WORLD: Readonly<Record<Split, number>> = { make: 0, train: WORLDS_PER_SPLIT, val: 2 * WORLDS_PER_SPLIT };

const PHRASINGS: readonly ((request: FlightRequest) => string)[] = [
  ({ traveller, from, to }) => `Book a flight for "${traveller}" from "${from}" to "${to}".`,
  ({ traveller, from, to }) => `"${traveller}" must fly from "${from}" to "${to}".`,
  ({ traveller, from, to }) => `Please find "${traveller}" a flight from "${from}" to "${to}".`,
  ({ traveller, from, to }) => `Get "${traveller}" from "${from}" to "${to}".`,
];

/**
 * The task at an index of a split; deterministic, and in a world of its own.
 * @param index integer from 0 to 2²⁸ − 1
 * @throws RangeError when the index is not
 */
export function makeTask(split: Split, index: number): FlightTask {
  const request = makeRequest(split, index);
  const { traveller, from, to } = request;
  const world = makeWorld(request.world);
  const preference = world.preference(traveller);
  const expected = world
    .flights(from, to, preference?.when ?? "morning")
    .find((flight) => flight.slice(0, 3) === preference?.airline);
  if (expected === undefined) throw new RangeError(`world ${request.world} has no right flight for "${traveller}"`);
  const phrase = pick(PHRASINGS, randomStream(request.world, "phrasing"));
  return {
    id: `flight-${split}-${index}`,
    input: { message: phrase(request), world: request.world },
    judge: {
      expected,
      answer_pattern: '"([A-Z]{3}[0-9]{2})"',
      format_pattern: '^Booked "[A-Z]{3}[0-9]{2}"\\.$',
    },
  };
}

/**
 * Who is to fly where, at an index of a split.
 * @throws RangeError when the index is not an integer from 0 to 2²⁸ − 1
 */
export function makeRequest(split: Split, index: number): FlightRequest {
  if (!Number.isInteger(index) || index < 0 || index >= WORLDS_PER_SPLIT)
    throw new RangeError(`wanted a task index from 0 to ${WORLDS_PER_SPLIT - 1}, got ${index}`);
  const number = FIRST_WORLD[split] + index;
  const world = makeWorld(number);
  const random = randomStream(number, "request");
  for (;;) {
    const traveller = pick(world.travellers, random);
    const [from = "", to = ""] = sample(world.cities, 2, random);
    const preference = world.preference(traveller);
    const request = { world: number, traveller, from, to };
    if (preference !== undefined && splitOf(request, preference) === split) return request;
  }
}

/** The split that alone may use a combination of traveller, route and preference: half make, a quarter each other. */
export function splitOf({ traveller, from, to }: Omit<FlightRequest, "world">, preference: Preference): Split {
  const hash = hash32([traveller, from, to, preference.when, preference.airline].join("/"));
  // FNV's low bits are weak; fold the high ones in.
  const quarter = (hash ^ (hash >>> 15)) & 3;
  return quarter < 2 ? "make" : quarter === 2 ? "train" : "val";
}
