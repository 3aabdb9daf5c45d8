import { expect, test } from "vitest";
import { compact, counted, duration, percent, signed, words } from "../../../cli/terminal/format.ts";

test.each([
  [0, "0s"],
  [59.4, "59s"],
  [59.6, "1m00s"],
  [185, "3m05s"],
  [3720, "1h02m"],
  [-3, "0s"],
])("%d seconds are read as %s", (seconds, read) => {
  expect(duration(seconds)).toBe(read);
});

test.each([
  [0, "0"],
  [840.4, "840"],
  [3412, "3.4k"],
  [1_240_000, "1.2M"],
])("%d is compact as %s", (value, read) => {
  expect(compact(value)).toBe(read);
});

test("shares, changes, names and counts read as people write them", () => {
  expect([
    percent(0.366),
    signed(0.413),
    signed(-0.02),
    words("memory_first"),
    counted(1, "call"),
    counted(2, "call"),
  ]).toEqual(["37%", "+0.41", "−0.02", "memory first", "1 call", "2 calls"]);
});
