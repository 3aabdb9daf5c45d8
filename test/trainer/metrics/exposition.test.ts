import { expect, it } from "vitest";
import { Counter, Histogram, renderGauge } from "../../../trainer/metrics/exposition.ts";

it("escapes help and label values, and names what is not finite", () => {
  const text = renderGauge("g", "a \\ and\na line", [
    { labels: {}, value: 1.5 },
    { labels: { task: 'say "hi"\\\n' }, value: Number.NaN },
    { labels: { task: "x" }, value: -Infinity },
  ]);
  expect(text).toBe(
    String.raw`# HELP g a \\ and\na line
# TYPE g gauge
g 1.5
g{task="say \"hi\"\\\n"} NaN
g{task="x"} -Inf
`,
  );
});

it("adds up counters by their labels", () => {
  const counter = new Counter("c_total", "counted");
  counter.add({ model: "a" }, 1);
  counter.add({ model: "b" }, 5);
  counter.add({ model: "a" }, 2);
  expect(counter.render()).toBe(
    '# HELP c_total counted\n# TYPE c_total counter\nc_total{model="a"} 3\nc_total{model="b"} 5\n',
  );
});

it("counts a histogram's buckets from below", () => {
  const histogram = new Histogram("h_seconds", "took");
  for (const seconds of [0.001, 0.05, 20]) histogram.observe({}, seconds);
  const lines = histogram.render().split("\n");
  expect(lines.slice(0, 3)).toEqual([
    "# HELP h_seconds took",
    "# TYPE h_seconds histogram",
    'h_seconds_bucket{le="0.001"} 1',
  ]);
  expect(lines).toContain('h_seconds_bucket{le="0.06"} 2');
  expect(lines.slice(-5)).toEqual([
    'h_seconds_bucket{le="10"} 2',
    'h_seconds_bucket{le="+Inf"} 3',
    "h_seconds_sum 20.051",
    "h_seconds_count 3",
    "",
  ]);
});
