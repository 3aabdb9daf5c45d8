import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { ROOT } from "../../cli/root.ts";
import { PRESETS } from "../../trainer/algorithm.ts";

const text = readFileSync(join(ROOT, "docs/ALGORITHMS.md"), "utf8");

/** `| … | [file.ts:12](../trainer/file.ts#L12) | `code` |` */
const LINE = /\[[\w.-]+:(\d+)\]\(\.\.\/([\w./-]+)#L(\d+)\) \| `(.+)` \|$/gm;

/** A section, from its heading to the next one. */
function section(heading: string): string {
  const [, found = ""] = new RegExp(`^### ${heading}$([^]*?)^##`, "m").exec(text) ?? [];
  return found;
}

describe("docs/ALGORITHMS.md", () => {
  const lines = [...text.matchAll(LINE)].map(([, named = "", path = "", anchor = "", code = ""]) => ({
    named,
    path,
    anchor,
    code,
  }));

  it("has a line for each equation", () => {
    expect(lines.length).toBeGreaterThanOrEqual(30);
    for (const { named, anchor } of lines) expect(anchor).toBe(named);
  });

  it.each(lines)("$path has at line $anchor: $code", ({ path, anchor, code }) => {
    expect(readFileSync(join(ROOT, path), "utf8").split("\n")[Number(anchor) - 1]).toContain(code);
  });

  it("points at files that are there", () => {
    const paths = [...text.matchAll(/\]\(((?!https?:)[^)#]+)/g)].map(([, path = ""]) => path);
    expect(paths.length).toBeGreaterThan(30);
    expect(paths.filter((path) => !existsSync(join(ROOT, "docs", path)))).toEqual([]);
  });

  it.each(
    Object.keys(PRESETS).map((name) => {
      const shared: Readonly<Record<string, string>> = {
        "reinforce++-baseline": "reinforce\\+\\+",
        "reinforce++": "reinforce\\+\\+",
        sft: "sft and dpo",
        dpo: "sft and dpo",
      };
      return [name, shared[name] ?? name] as const;
    }),
  )("the section of %s has its command, details, what to watch, its curve and its result", (name, heading) => {
    const found = section(heading);
    expect(found).toContain(`--algorithm ${name.replace("-baseline", "")}`);
    expect(found).toMatch(/^1\. /m);
    for (const part of ["*Watch*", "*Curve*", "*Result*"]) expect(found).toContain(part);
    if (name !== "lightning") expect(found).toContain("*Departures*");
  });
});
