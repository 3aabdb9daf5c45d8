import { describe, expect, it } from "vitest";
import { compilePattern } from "../../../edge/record/pattern.ts";

describe("compilePattern", () => {
  it("finds the leftmost match and its first group as RegExp does", () => {
    const cases: readonly (readonly [string, string])[] = [
      ['"([A-Z]{3}[0-9]{2})"', 'Booked "SAS12", not "KLM34".'],
      ["answer: (-?\\d+(?:\\.\\d+)?)", "the answer: -12.50 euros"],
      ["(a|ab)(c|bcd)(d*)", "abcd"],
      ["(a+?)b", "xaaab"],
      ["\\bcat(s?)\\b", "concat cats"],
      ['(?<code>[^\\s"]+)$', "the code is ✈️X9"],
      ["x{2,3}(y?)", "xxxxy"],
      ["([\\]\\-])", "a-]"],
      ["^$|(z)", "z"],
    ];
    for (const [source, text] of cases) {
      const native = new RegExp(source, "u").exec(text);
      const ours = compilePattern(source).search(text);
      expect({ source, match: ours?.match, group: ours?.group }).toEqual({
        source,
        match: native?.[0],
        group: native?.[1],
      });
    }
  });

  it("matches a whole text or not at all", () => {
    expect(compilePattern("a|ab").matchesWhole("ab")).toBe(true);
    expect(compilePattern("^ab$").matchesWhole("abc")).toBe(false);
  });

  it("takes no longer than the text is long where backtracking would explode", () => {
    const text = "a".repeat(16_000);
    for (const source of ["(a+)+$", "(a|aa)+$", "(.*)*$", "(a*)*b", ".*.*.*.*x"]) {
      const started = performance.now();
      compilePattern(source).search(`${text}!`);
      // Backtracking would take longer than the universe is old.
      expect(performance.now() - started).toBeLessThan(5000);
    }
  });

  it("says what is wrong with a pattern that it refuses", () => {
    for (const source of ["(", "(?=a)", "(?<!a)b", "(a)\\1", "((a{50}){50}){50}", "a{1000000}"]) {
      expect(() => compilePattern(source)).toThrow(
        expect.objectContaining({
          code: "ERR_INVALID_REQUEST",
          message: expect.stringContaining(`${JSON.stringify(source)} cannot be used`),
        }),
      );
    }
  });

  it("replaces every match by a text as it is", () => {
    expect(compilePattern("a+").replaceAll("xaaya", "$1\\")).toBe("x$1\\y$1\\");
    expect(compilePattern("a").replaceAll("xyz", "-")).toBe("xyz");
    expect(compilePattern("^x").replaceAll("xx", "-")).toBe("-x");
    expect(compilePattern(".").replaceAll("✈️X", "")).toBe("");
    expect(compilePattern("b*").replaceAll("abc", "-")).toBe("abc".replaceAll(/b*/g, "-"));
  });

  it("counts its groups", () => {
    expect(compilePattern("(a)(?:b)(?<n>c)").groups).toBe(2);
  });
});
