import { expect, test } from "vitest";
import { algorithmNamed, namedAlgorithms } from "../../../cli/commands/algorithms.ts";
import { algorithmsText, algorithmText } from "../../../cli/terminal/algorithms-table.ts";
import { PLAIN } from "../../../cli/terminal/style.ts";

test("the list has each algorithm's choices in a line, and below what it is and when to choose it", () => {
  const lines = algorithmsText(namedAlgorithms(), PLAIN)
    .split("\n")
    .map((line) => line.trimEnd().split(/ {2,}/));
  expect(lines).toContainEqual(["lightning", "identical", "group-mean", "ppo-clip", "–", "ours"]);
  expect(lines).toContainEqual([
    "grpo",
    "identical",
    "group-mean-std",
    "ppo-clip",
    "k3 in the loss, 0.04",
    "arXiv:2402.03300",
  ]);
  expect(lines).toContainEqual(["dapo", "identical + overlong", "group-mean-std", "ppo-clip", "–", "arXiv:2503.14476"]);
  for (const { name, notes } of namedAlgorithms()) {
    const at = lines.findIndex((line) => line[0] === name && line[1] === notes.what);
    expect(lines[at + 1]).toEqual(["", notes.when]);
  }
});

test("every line of the list fits a terminal of 120 columns", () => {
  const widths = algorithmsText(namedAlgorithms(), PLAIN)
    .split("\n")
    .map((line) => line.trimEnd().length);
  expect(Math.max(...widths)).toBeLessThanOrEqual(120);
});

test("one algorithm is shown with its notes, every setting and the command that trains with it", () => {
  const text = algorithmText(algorithmNamed("cispo"), PLAIN);
  const { notes } = algorithmNamed("cispo");
  for (const note of Object.values(notes)) expect(text).toContain(note);
  for (const setting of ["clipHigh 4", "importance ratio", "epsilon 0.000001", "aggregation token-mean"]) {
    expect(text).toContain(setting);
  }
  expect(text).toContain("npx fulgur start --algorithm cispo");
  expect(algorithmText(algorithmNamed("dapo"), PLAIN)).toContain("overlong maxTokens 20480, cacheTokens 4096");
  expect(algorithmText(algorithmNamed("lightning"), PLAIN)).toMatch(/^lightning {2}\(default\)/);
});
