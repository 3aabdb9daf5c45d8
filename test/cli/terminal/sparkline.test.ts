import { expect, test } from "vitest";
import { sparkline } from "../../../cli/terminal/sparkline.ts";

test("the least value is the lowest bar and the greatest the highest", () => {
  expect(sparkline([0, 1, 2, 3, 4, 5, 6, 7])).toBe("▁▂▃▄▅▆▇█");
});

test("more values than characters are averaged over spans, so that the whole course shows", () => {
  expect(sparkline([0, 0, 3, 4, 7, 7], 3)).toBe("▁▅█");
  expect(sparkline([0, 7, 7], 2)).toBe("▁█");
});

test("equal values are low, and no value draws nothing", () => {
  expect(sparkline([3, 3])).toBe("▁▁");
  expect(sparkline([])).toBe("");
});
