import { expect, test } from "vitest";
import {
  initialValueHead,
  rateFactor,
  VALUE_BIAS,
  VALUE_WEIGHT,
  withoutValueHead,
} from "../../../trainer/engine/value-head.ts";

test("a fresh head expects nothing, and is no part of what others are given", () => {
  const head = initialValueHead(5);
  expect([...head].map(([name, { shape, data }]) => [name, shape, data])).toEqual([
    [VALUE_WEIGHT, [1, 5], new Float32Array(5)],
    [VALUE_BIAS, [1], new Float32Array(1)],
  ]);
  const policy = { shape: [2], data: Float32Array.of(1, 2) };
  expect([...withoutValueHead(new Map([["policy", policy], ...head]))]).toEqual([["policy", policy]]);
});

test("its bias keeps pace with what all of its weights can do together", () => {
  expect([VALUE_BIAS, VALUE_WEIGHT, "model.norm.weight"].map((name) => rateFactor(name, 144))).toEqual([144, 1, 1]);
});
