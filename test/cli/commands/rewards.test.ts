import { describe, expect, it } from "vitest";
import type { RecomputeBody, Recomputed } from "#shared/wire-feedback.ts";
import { everyPage, rewardsCommand, summary } from "../../../cli/commands/rewards.ts";

const page = (change: Partial<Recomputed> = {}): Recomputed => ({
  scanned: 2,
  changed: 1,
  skipped: 0,
  failed: [],
  failures: 0,
  before: { rewarded: 2, sum: 1 },
  after: { rewarded: 2, sum: 1.5 },
  nextAfter: null,
  ...change,
});

describe("everyPage", () => {
  it("asks from where the page before ended, and adds up", async () => {
    const asked: RecomputeBody[] = [];
    const pages = [
      page({ nextAfter: "1:a", failed: [{ rollout_id: "ro_1", error: "e" }], failures: 1 }),
      page({ nextAfter: "2:b" }),
      page({ skipped: 2 }),
    ];
    const total = await everyPage(
      (body) => {
        asked.push(body);
        return Promise.resolve(pages[asked.length - 1] ?? page());
      },
      { agent: "flight", limit: 2 },
    );
    expect(asked).toEqual([
      { agent: "flight", limit: 2 },
      { agent: "flight", limit: 2, after: "1:a" },
      { agent: "flight", limit: 2, after: "2:b" },
    ]);
    expect(total).toEqual({
      scanned: 6,
      changed: 3,
      skipped: 2,
      failed: [{ rollout_id: "ro_1", error: "e" }],
      failures: 1,
      before: { rewarded: 6, sum: 3 },
      after: { rewarded: 6, sum: 4.5 },
    });
  });
});

describe("summary", () => {
  it("says how many changed, the means, and what was left as it was", () => {
    const total = page({ skipped: 3, failures: 1, failed: [{ rollout_id: "ro_1", error: "no judge" }] });
    expect(summary(total, false).split("\n")).toEqual([
      "1 of 2 rollouts changed",
      "mean reward 0.5000 (of 2) before, 0.7500 (of 2) after",
      expect.stringContaining("3 left alone"),
      expect.stringContaining("1 could not be judged"),
      "  ro_1  no judge",
    ]);
    expect(summary(page({ before: { rewarded: 0, sum: 0 } }), true)).toMatch(/would change\nmean reward – before/);
  });
});

describe("fulgur rewards recompute", () => {
  it("takes times with a unit only", async () => {
    const command = rewardsCommand()
      .exitOverride()
      .configureOutput({ writeErr: () => undefined });
    for (const inner of command.commands) inner.copyInheritedSettings(command);
    await expect(command.parseAsync(["recompute", "--since", "7"], { from: "user" })).rejects.toThrow(/7d or 12h/);
  });
});
