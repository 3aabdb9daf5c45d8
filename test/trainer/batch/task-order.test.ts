import { describe, expect, it } from "vitest";
import { taskOfGroup } from "../../../trainer/batch/task-order.ts";

const ids = Array.from({ length: 10 }, (_, at) => `task-${at}`);
const order = (seed: number, from: number) => Array.from({ length: 10 }, (_, at) => taskOfGroup(ids, from + at, seed));

describe("taskOfGroup", () => {
  it("goes through all tasks once in each pass, in another order", () => {
    expect(new Set(order(1, 0))).toEqual(new Set(ids));
    expect(new Set(order(1, 10))).toEqual(new Set(ids));
    expect(order(1, 10)).not.toEqual(order(1, 0));
  });

  it("is fixed by the seed", () => {
    expect(order(7, 0)).toEqual(order(7, 0));
    expect(order(8, 0)).not.toEqual(order(7, 0));
  });

  it("has nothing to give without tasks", () => {
    expect(taskOfGroup([], 3, 1)).toBeUndefined();
  });
});
