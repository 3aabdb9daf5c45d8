import * as fc from "fast-check";
import { expect } from "vitest";
import { FulgurError } from "#shared/errors.ts";
import { setting } from "../support/seed.ts";

/**
 * How parsers are tried: each takes what anybody may send, answers with a value or a FulgurError, soon, and changes nothing.
 * FULGUR_FUZZ_TIMES=20 tries twenty times as many inputs, FULGUR_PROPERTY_SEED others.
 */
const TIMES = setting("FULGUR_FUZZ_TIMES", 1, { min: 1, max: 10_000 });

/** The longest that one input may take; generous, since a parser that backtracks takes minutes. */
const MAX_MS = 500;

/** Texts and names that have broken parsers. */
const NASTY = [
  "__proto__",
  "constructor",
  "prototype",
  "toString",
  "then",
  "\u0000",
  "\ud800",
  "\u{FEFF}",
  "\u2028",
  "a".repeat(300),
  "<tool_call>",
  "</tool_call>",
  "data: [DONE]\n\n",
  "{{ 1 / 0 }}",
  "{% for x in x %}",
  "${x}",
  "../../x",
  "flight@1",
  "provider:a/b",
  "NaN",
  "1e999",
];

export const anyText = fc.oneof(fc.constantFrom(...NASTY), fc.string({ unit: "binary", maxLength: 40 }), fc.string());
export const anyValue = fc.letrec<{ any: unknown }>((tie) => ({
  any: fc.oneof(
    { depthSize: "small" },
    anyText,
    fc.double(),
    fc.integer(),
    fc.constantFrom(null, true, false, 1e308, -0, 2 ** 53),
    fc.constant({ toString: [], valueOf: null }),
    fc.array(tie("any"), { maxLength: 4 }),
    fc.dictionary(anyText, tie("any"), { maxKeys: 4 }),
  ),
})).any;

/** Whether a call gives a value (and not a FulgurError), in time, and leaves every object's prototype alone. */
export async function holds(run: () => unknown): Promise<boolean> {
  const started = performance.now();
  let taken = true;
  try {
    await run();
  } catch (thrown) {
    if (!(thrown instanceof FulgurError)) throw thrown;
    expect(thrown.message.length).toBeGreaterThan(5);
    taken = false;
  }
  expect(performance.now() - started).toBeLessThan(MAX_MS);
  expect(Object.keys(Object.prototype)).toEqual([]);
  return taken;
}

/**
 * Tries many inputs.
 * @returns which part of them was taken, in [0, 1]: where it is small, all that was tried was the first check
 */
export async function takenPart<T>(input: fc.Arbitrary<T>, run: (value: T) => unknown, runs = 200): Promise<number> {
  const numRuns = runs * TIMES;
  let taken = 0;
  await fc.assert(
    fc.asyncProperty(input, async (given) => {
      if (await holds(() => run(given))) taken++;
    }),
    { numRuns },
  );
  return taken / numRuns;
}

/** One change to a value: at a place of it something is put, taken away, said twice or added. */
interface Change {
  readonly path: readonly string[];
  readonly kind: "put" | "remove" | "repeat" | "add";
  readonly name: string;
  readonly value: unknown;
}

/** A good value with none to three changes: what gets past the first check that random values fail at. */
export function spoiled(good: unknown): fc.Arbitrary<unknown> {
  const change: fc.Arbitrary<Change> = fc.record({
    path: fc.constantFrom(...pathsOf(good)),
    kind: fc.constantFrom("put", "remove", "repeat", "add"),
    name: anyText,
    value: anyValue,
  });
  return fc
    .array(change, { maxLength: 3 })
    .map((changes) => changes.reduce<unknown>((value, each) => changed(value, each.path, each), good));
}

/** The same as JSON, sometimes cut somewhere, sometimes no JSON at all. */
export function spoiledText(good: unknown): fc.Arbitrary<string> {
  const whole = JSON.stringify(good);
  return fc.oneof(
    { weight: 10, arbitrary: spoiled(good).map((given) => JSON.stringify(given) ?? "") },
    { weight: 1, arbitrary: fc.string() },
    { weight: 1, arbitrary: fc.nat(whole.length).map((at) => whole.slice(0, at)) },
  );
}

function pathsOf(value: unknown, path: readonly string[] = []): (readonly string[])[] {
  if (typeof value !== "object" || value === null) return [path];
  return [path, ...Object.entries(value).flatMap(([name, field]) => pathsOf(field, [...path, name]))];
}

/** A copy that is changed; itself where an earlier change has taken the place away. */
function changed(value: unknown, [step, ...rest]: readonly string[], change: Change): unknown {
  const { kind, name, value: given } = change;
  if (step === undefined) {
    if (kind !== "add") return given;
    if (Array.isArray(value)) return [...(value as readonly unknown[]), given];
    return typeof value === "object" && value !== null ? withField(value, name, given) : given;
  }
  if (typeof value !== "object" || value === null || !Object.hasOwn(value, step)) return value;
  const here = rest.length === 0 && (kind === "remove" || kind === "repeat");
  if (Array.isArray(value)) {
    const items: readonly unknown[] = value;
    const at = Number(step);
    const item = items[at];
    const inPlace = !here ? [changed(item, rest, change)] : kind === "remove" ? [] : [item, item];
    return items.toSpliced(at, 1, ...inPlace);
  }
  const fields: [string, unknown][] = Object.entries(value);
  return Object.fromEntries(
    fields.flatMap(([key, field]): [string, unknown][] => {
      if (key !== step) return [[key, field]];
      if (!here) return [[key, changed(field, rest, change)]];
      return kind === "remove"
        ? []
        : [
            [key, field],
            [name, field],
          ];
    }),
  );
}

/** `__proto__` becomes a field like any other, as JSON.parse makes it. */
function withField(value: object, name: string, given: unknown): object {
  return Object.fromEntries([...Object.entries(value), [name, given]]);
}
