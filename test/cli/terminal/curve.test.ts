import { expect, test } from "vitest";
import { curveSvg } from "../../../cli/terminal/curve.ts";
import { pngOf } from "../../../cli/terminal/png.ts";
import type { Summary } from "../../../cli/terminal/summary.ts";

const summary: Summary = {
  task: "flight",
  steps: 3,
  wall_s: 12,
  eval_before: { reward: 0.1, reward_ci: [0.05, 0.15], memory_first: 0.3, memory_first_ci: [0.25, 0.35], n: 64 },
  eval_after: { reward: 0.5, reward_ci: [0.45, 0.55], memory_first: 0.9, memory_first_ci: [0.85, 0.95], n: 64 },
  tokens_per_s: { decode: 1, train: 1 },
  calls: 1,
  rollouts: 1,
  dropped: {},
};
const points = [
  { step: 1, reward: 0.1, firstTool: 0.3 },
  { step: 2, reward: 0.3, firstTool: 0.6 },
  { step: 3, reward: 0.5, firstTool: 0.9 },
];

test("higher values are drawn higher, within the panel", () => {
  const [path] = /(?<=<path d=")M[^"]+/.exec(curveSvg(points, summary)) ?? [];
  const heights = [...(path ?? "").matchAll(/[ML][\d.]+ ([\d.]+)/g)].map((match) => Number(match[1]));
  // The first panel is 200 high, from 0% at its bottom to 100%.
  expect(heights).toHaveLength(3);
  const [first = 0, second = 0, third = 0] = heights;
  expect(first - second).toBeCloseTo(60, 5);
  expect(second - third).toBeCloseTo(60, 5);
});

test("both ends have a marker with its interval, and the after-number stands out", () => {
  const svg = curveSvg(points, summary);
  expect(svg.match(/<circle/g)).toHaveLength(4);
  expect(svg).toContain(">90%<");
  expect(svg).toContain(">0.50<");
});

test("without anything to say of first tools, as on live traffic, the reward has the picture to itself", () => {
  const live = points.map(({ step, reward }) => ({ step, reward, firstTool: undefined }));
  const svg = curveSvg(live, { ...summary, eval_before: null, eval_after: null });
  expect(svg).toContain('height="384" viewBox="0 0 960 384"');
  expect(svg).not.toContain("share of rollouts");
  expect(svg).not.toContain("NaN");
  const [path] = /(?<=<path d=")M[^"]+/.exec(svg) ?? [];
  expect(path?.match(/[ML]/g)).toHaveLength(3);
  expect(svg).toContain(">training step<");
});

test("a run without a single step is still a picture", async () => {
  const png = await pngOf(curveSvg([], summary));
  expect(Buffer.from(png.subarray(1, 4)).toString()).toBe("PNG");
});

test("names are escaped", () => {
  expect(curveSvg(points, { ...summary, task: "<a&b>" })).toContain("&lt;a&amp;b&gt;");
});
