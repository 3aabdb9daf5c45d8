import { expect, test } from "vitest";
import { KvBuffer, POSITION_STEP } from "../../../trainer/inference/kv-buffer.ts";

const SHAPE = { planes: 2, kvHeads: 2, headSize: 2 };

test("what is appended lies behind what each row held", () => {
  const buffer = new KvBuffer(SHAPE);
  buffer.reserve(2, 3, 0);
  expect(buffer.positions).toBe(POSITION_STEP);
  // [planes 2, rows 2, heads 2, positions 1, size 2]
  buffer.append(
    Float32Array.from({ length: 16 }, (_, i) => i),
    [0, 2],
    2,
    1,
  );
  expect(at(buffer, 0, 0, 0, 0)).toEqual([0, 1]);
  expect(at(buffer, 0, 0, 1, 0)).toEqual([2, 3]);
  expect(at(buffer, 0, 1, 1, 2)).toEqual([6, 7]);
  expect(at(buffer, 1, 1, 0, 2)).toEqual([12, 13]);
  expect(at(buffer, 0, 1, 0, 0)).toEqual([0, 0]);
});

test("growing in rows and positions keeps what the used rows hold", () => {
  const buffer = filled(2, 5);
  const before = [0, 1].map((row) => buffer.readBlock(row, 0, 5));
  buffer.reserve(3, POSITION_STEP + 1, 2);
  expect(buffer.positions).toBe(2 * POSITION_STEP);
  expect([0, 1].map((row) => buffer.readBlock(row, 0, 5))).toEqual(before);
});

test("positions shrink again only when nothing is used", () => {
  const buffer = filled(1, 5);
  buffer.reserve(1, 3 * POSITION_STEP, 1);
  buffer.reserve(1, 1, 1);
  expect(buffer.positions).toBe(3 * POSITION_STEP);
  buffer.reserve(1, 1, 0);
  expect(buffer.positions).toBe(POSITION_STEP);
});

test("a block goes out and comes back in another row of another buffer", () => {
  const source = filled(2, 40);
  const target = new KvBuffer(SHAPE);
  target.reserve(3, 100, 0);
  target.writeBlock(source.readBlock(1, 8, 16), 2, 32, 16);
  expect(target.readBlock(2, 32, 16)).toEqual(source.readBlock(1, 8, 16));
  target.copyRow(source, 0, 1, 40);
  expect(target.readBlock(1, 0, 40)).toEqual(source.readBlock(0, 0, 40));
});

test("a released buffer holds nothing and can be used again", () => {
  const buffer = filled(2, 5);
  buffer.release();
  expect([buffer.positions, buffer.plane(0, 0).length]).toEqual([0, 0]);
  buffer.reserve(1, 1, 0);
  expect(buffer.plane(0, 1)).toHaveLength(2 * POSITION_STEP * 2);
});

function filled(rows: number, length: number): KvBuffer {
  const buffer = new KvBuffer(SHAPE);
  buffer.reserve(rows, length, 0);
  const numbers = Float32Array.from({ length: 2 * rows * 2 * length * 2 }, (_, i) => i + 1);
  buffer.append(numbers, new Int32Array(rows), rows, length);
  return buffer;
}

function at(buffer: KvBuffer, plane: number, row: number, head: number, position: number): number[] {
  const start = ((row * 2 + head) * buffer.positions + position) * 2;
  return Array.from(buffer.plane(plane, 2).subarray(start, start + 2));
}
