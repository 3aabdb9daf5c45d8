import { describe, expect, test } from "vitest";
import {
  between,
  bytes,
  choice,
  Grammar,
  type GrammarNode,
  literal,
  optional,
  repeat,
  sequence,
} from "../../../trainer/inference/grammar.ts";

/** "whole" where the grammar has the text, "open" where it has a longer one that begins so, else "none". */
function match(root: GrammarNode, text: string): "whole" | "open" | "none" {
  let state = new Grammar(root).start();
  for (const byte of Buffer.from(text)) state = state?.next(byte) ?? null;
  return state === null ? "none" : state.isAccepting ? "whole" : "open";
}

describe("a grammar matches", () => {
  const digits = bytes([0x30, 0x39]);
  test.each<[string, GrammarNode, Record<string, string>]>([
    ["literals, in bytes", literal("né"), { n: "open", né: "whole", nè: "none", "": "open" }],
    [
      "choices",
      choice(literal("ab"), literal("ac"), literal("a")),
      { a: "whole", ab: "whole", ac: "whole", ad: "none" },
    ],
    [
      "sequences",
      sequence(digits, literal("x"), optional(digits)),
      { "1": "open", "1x": "whole", "1x2": "whole", x: "none" },
    ],
    ["repeats", repeat(literal("ab")), { "": "whole", ab: "whole", aba: "open", abab: "whole", b: "none" }],
    ["counts", between(digits, 2, 3), { "1": "open", "12": "whole", "123": "whole", "1234": "none" }],
    ["at least", between(digits, 1, Infinity), { "": "open", "1": "whole", "11111": "whole" }],
    ["a repeat of what may be empty", repeat(optional(literal("a"))), { "": "whole", aaa: "whole", b: "none" }],
  ])("%s", (_, root, expected) => {
    for (const [text, result] of Object.entries(expected)) expect([text, match(root, text)]).toEqual([text, result]);
  });

  test("brackets to any depth, and no others", () => {
    const nested: GrammarNode = choice(
      literal("x"),
      sequence(literal("["), { type: "reference", target: () => nested }, literal("]")),
    );
    expect(match(nested, `${"[".repeat(5000)}x${"]".repeat(5000)}`)).toBe("whole");
    expect(match(nested, `${"[".repeat(5000)}x${"]".repeat(4999)}`)).toBe("open");
    expect(match(nested, "[x]]")).toBe("none");
  });

  test("nothing where a reference leads to itself", () => {
    const endless: GrammarNode = { type: "reference", target: () => endless };
    expect(new Grammar(endless).start()).toBeNull();
  });
});

test("what is common in a text is looked up: a repeat comes back to the state it began with", () => {
  const state = new Grammar(sequence(literal('"'), repeat(bytes([0x61, 0x7a])), literal('"'))).start()?.next(0x22);
  expect(state?.next(0x61)).toBe(state?.next(0x7a)?.next(0x62));
});
