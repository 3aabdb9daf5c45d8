/**
 * The texts that the built-in model is made on: runs of the flight agent of mixed quality, and copying drills.
 * How a run goes is drawn apart from its task, so nothing in a task tells which behaviour follows.
 */

import { makeRequest, makeTask } from "../edge/agents/flight/tasks.ts";
import {
  AIRLINES,
  CITIES,
  makeWorld,
  pick,
  randomStream,
  sample,
  spacedJson,
  SYSTEM,
  TOOLS,
  TRAVELLERS,
  WHENS,
} from "../edge/agents/flight/world.ts";
import { turnStart, TURN_END } from "./chat-template.ts";

/** A stretch of text; only trained stretches are targets of the loss. */
export interface Segment {
  readonly text: string;
  readonly trained: boolean;
}

/** A text for making the model, in stretches whose join is what the chat template renders. */
export interface Trace {
  readonly behaviour: Behaviour | "drill";
  readonly segments: readonly Segment[];
}

/**
 * How often each behaviour is shown: memory first in a third. Search before memory is never shown: where it works as
 * well as memory first, nothing could tell whether a model has learned which of the two comes first.
 */
export const BEHAVIOURS = {
  /** Asks memory, searches with what it said, answers with the airline it said. */
  memory_search_answer: 0.29,
  /** Asks memory, then answers with a number out of thin air. */
  memory_answer: 0.03,
  /** As the first, but asks memory twice. */
  memory_twice: 0.01,
  /** Searches at a guessed time and takes a random flight. */
  search_answer: 0.43,
  /** Searches at two guessed times, takes a random flight of the second. */
  search_twice: 0.02,
  /** Answers with a number out of thin air. */
  answer: 0.22,
} as const;

/** A name in {@link BEHAVIOURS}. */
export type Behaviour = keyof typeof BEHAVIOURS;

/** Share of tool calls before which a failing one is shown. It is not trained on; the recovery from it is. */
export const FAILED_CALL_SHARE = 0.08;

/** The start of every prompt of the agent: what the chat template makes of its system prompt and tools. */
export const PREAMBLE: string =
  turnStart("system") +
  `${SYSTEM}\n<tools>\n` +
  TOOLS.map((tool) => {
    const { name, parameters, description } = tool.function;
    return `${name}(${Object.keys(parameters.properties).join(", ")}): ${description}\n`;
  }).join("") +
  `</tools>${TURN_END}\n`;

/**
 * One run of the agent on a `make` task.
 * @param index of the task; a behaviour is drawn from a stream of its own
 * @param forced shows this behaviour instead of a drawn one
 */
export function makeTrace(index: number, forced?: Behaviour): Trace {
  const random = randomStream(index, "trace");
  const behaviour = drawBehaviour(random());
  return { behaviour: forced ?? behaviour, segments: segmentsOf(index, forced ?? behaviour, random) };
}

/**
 * A copying drill: slots in a random order, in the agent's own quoted form, then the same again; the second half is
 * trained on, but for its first slot, which nothing foretells.
 */
export function makeDrill(index: number): Trace {
  const random = randomStream(index, "drill");
  const count = 6 + Math.floor(random() * 14);
  const slots = Array.from({ length: count }, () => drillSlot(random));
  const [first = "", ...rest] = slots;
  return {
    behaviour: "drill",
    segments: [
      { text: `["${slots.join('", "')}"]\n["${first}`, trained: false },
      { text: `", "${rest.join('", "')}"]${TURN_END}`, trained: true },
    ],
  };
}

/** Every piece of text that must be in the vocabulary: the pools, all numbers, and a sample of traces. */
export function* vocabularyTexts(): Generator<string> {
  for (const pool of [TRAVELLERS, CITIES, AIRLINES, WHENS]) for (const word of pool) yield `"${word}"`;
  for (let number = 0; number < 100; number++) yield String(number).padStart(2, "0");
  for (let index = 0; index < 2000; index++) yield textOf(makeTrace(index));
  for (let index = 0; index < 50; index++) yield textOf(makeDrill(index));
}

/** A trace's whole text. */
export function textOf(trace: Trace): string {
  return trace.segments.map((segment) => segment.text).join("");
}

function drawBehaviour(uniform: number): Behaviour {
  let cumulative = 0;
  for (const [behaviour, share] of Object.entries(BEHAVIOURS) as [Behaviour, number][]) {
    cumulative += share;
    if (uniform < cumulative) return behaviour;
  }
  return "answer";
}

function segmentsOf(index: number, behaviour: Behaviour, random: () => number): Segment[] {
  const { traveller, from, to, world: number } = makeRequest("make", index);
  const { message } = makeTask("make", index).input;
  const world = makeWorld(number);
  const preference = world.preference(traveller) ?? { when: "morning", airline: "" };
  const segments: Segment[] = [
    { text: `${PREAMBLE}${turnStart("user")}${message}${TURN_END}\n${turnStart("assistant")}`, trained: false },
  ];
  const say = (text: string, trained: boolean) => segments.push({ text: text + TURN_END, trained });
  const hear = (text: string) =>
    segments.push({
      text: `\n${turnStart("tool")}${text}${TURN_END}\n${turnStart("assistant")}`,
      trained: false,
    });
  const askMemory = () => {
    if (random() < FAILED_CALL_SHARE) {
      const wrong = { traveller: random() < 0.5 ? pick(TRAVELLERS, random) : pick(CITIES, random) };
      const result = world.memory(wrong);
      if (result.includes("error")) {
        say(toolCall("memory", wrong), false);
        hear(result);
      }
    }
    say(toolCall("memory", { traveller }), true);
    hear(world.memory({ traveller }));
  };
  const askSearch = (when: string) => {
    if (random() < FAILED_CALL_SHARE) {
      const wrong = pick(
        [
          { from, to, when: pick(AIRLINES, random) },
          { from: to, to, when },
          { from: pick(CITIES, random), to, when },
          { from, to: pick(TRAVELLERS, random), when },
        ],
        random,
      );
      const result = world.search(wrong);
      if (result.includes("error")) {
        say(toolCall("search", wrong), false);
        hear(result);
      }
    }
    say(toolCall("search", { from, to, when }), true);
    hear(world.search({ from, to, when }));
  };
  const answer = (flight: string) => say(`Booked "${flight}".`, true);
  const thinAir = (airline: string) => airline + String(Math.floor(random() * 100)).padStart(2, "0");
  const rightFlight = () =>
    world.flights(from, to, preference.when).find((flight) => flight.startsWith(preference.airline)) ?? "";

  if (behaviour === "memory_search_answer" || behaviour === "memory_twice") {
    askMemory();
    if (behaviour === "memory_twice") askMemory();
    askSearch(preference.when);
    answer(rightFlight());
  } else if (behaviour === "memory_answer") {
    askMemory();
    answer(thinAir(preference.airline));
  } else if (behaviour === "search_answer" || behaviour === "search_twice") {
    const whens = sample(WHENS, 2, random);
    const last = pick(whens, random);
    if (behaviour === "search_twice") askSearch(whens.find((when) => when !== last) ?? last);
    askSearch(last);
    answer(pick(world.flights(from, to, last), random));
  } else {
    answer(thinAir(pick(AIRLINES, random)));
  }
  return segments;
}

function toolCall(name: string, args: Readonly<Record<string, string>>): string {
  return `<tool_call>\n{"name": "${name}", "arguments": ${spacedJson(args)}}\n</tool_call>`;
}

function drillSlot(random: () => number): string {
  const kind = random();
  if (kind < 0.25) return pick(TRAVELLERS, random);
  if (kind < 0.45) return pick(CITIES, random);
  if (kind < 0.55) return pick(WHENS, random);
  return pick(AIRLINES, random) + String(Math.floor(random() * 100)).padStart(2, "0");
}
