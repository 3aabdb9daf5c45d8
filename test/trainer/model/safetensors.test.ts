import { mkdtemp, readdir, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import {
  openModelWeights,
  openSafetensors,
  openSafetensorsBytes,
  readModelWeights,
  readSafetensors,
  writeSafetensors,
} from "../../../trainer/model/safetensors.ts";

let dir = "";
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-safetensors-"));
});
afterEach(async () => {
  await rm(dir, { recursive: true, force: true });
});

const TENSORS = new Map([
  ["b", { shape: [2, 3], data: Float32Array.of(1, -2, 3.5, 0, 1e-30, 65504) }],
  ["a", { shape: [], data: Float32Array.of(7) }],
  ["none", { shape: [0, 4], data: new Float32Array() }],
]);

/** A file as the format's description lays it out, byte by byte. */
async function writeRaw(path: string, header: unknown, data: Uint8Array): Promise<void> {
  const json = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  await writeFile(path, Buffer.concat([length, json, data]));
}

describe("writing and reading", () => {
  test("keeps every bit, order, shape and metadata", async () => {
    const path = join(dir, "x.safetensors");
    await writeSafetensors(path, TENSORS, { metadata: { step: "12" } });
    const read = await readSafetensors(path);
    expect([...read.keys()]).toEqual(["b", "a", "none"]);
    expect(read).toEqual(TENSORS);
    const file = await openSafetensors(path);
    expect(file.metadata).toEqual({ step: "12" });
    expect(file.shapeOf("b")).toEqual([2, 3]);
    await file.close();
    expect(await readdir(dir)).toEqual(["x.safetensors"]);
  });

  test("reads the same from bytes in memory, and refuses them cut short, by the name that they were given", async () => {
    const path = join(dir, "x.safetensors");
    await writeSafetensors(path, TENSORS, { dtype: "BF16" });
    const bytes = new Uint8Array(await readFile(path));
    const file = await openSafetensorsBytes(bytes, "adapter");
    const read = new Map(await Promise.all(file.names.map(async (name) => [name, await file.read(name)] as const)));
    expect(read).toEqual(await readSafetensors(path));
    await expect(openSafetensorsBytes(bytes.subarray(0, bytes.length - 1), "adapter")).rejects.toThrow(
      /adapter is cut short/,
    );
  });

  test("aligns the data to 8 bytes, as readers that map the file want", async () => {
    const path = join(dir, "x.safetensors");
    await writeSafetensors(path, TENSORS);
    const header = (await readFile(path)).readBigUInt64LE();
    expect(Number(header) % 8).toBe(0);
  });

  test("bfloat16 rounds to nearest even and keeps infinities and NaN", async () => {
    const path = join(dir, "x.safetensors");
    // 1 + 2⁻⁸ lies between 1 and 1 + 2⁻⁷ and goes to the even one, 1; 1 + 3·2⁻⁸ goes to 1 + 2⁻⁶.
    const data = Float32Array.of(1, 1 + 2 ** -8, 1 + 3 * 2 ** -8, -Infinity, NaN);
    await writeSafetensors(path, new Map([["x", { shape: [5], data }]]), { dtype: "BF16" });
    const read = (await readSafetensors(path)).get("x")?.data ?? [];
    expect([...read]).toEqual([1, 1, 1 + 2 ** -6, -Infinity, NaN]);
  });

  test("float16 is read: normal, subnormal, infinite", async () => {
    const path = join(dir, "x.safetensors");
    const halves = Uint16Array.of(0x3c00, 0xc000, 0x3555, 0x0001, 0x7c00, 0x8000);
    await writeRaw(path, { x: { dtype: "F16", shape: [6], data_offsets: [0, 12] } }, new Uint8Array(halves.buffer));
    const read = (await readSafetensors(path)).get("x")?.data ?? [];
    expect([...read]).toEqual([1, -2, 1365 / 4096, 2 ** -24, Infinity, -0]);
  });

  test("reads tensors whose data is not aligned", async () => {
    const path = join(dir, "x.safetensors");
    const header = {
      x: { dtype: "F32", shape: [1], data_offsets: [1, 5] },
      y: { dtype: "F32", shape: [0], data_offsets: [0, 0] },
    };
    await writeRaw(path, header, new Uint8Array([0, ...new Uint8Array(Float32Array.of(2.5).buffer)]));
    expect((await readSafetensors(path)).get("x")?.data).toEqual(Float32Array.of(2.5));
  });

  test("a failed write leaves the old file and nothing else", async () => {
    const path = join(dir, "x.safetensors");
    await writeSafetensors(path, TENSORS);
    const wrong = new Map([["x", { shape: [3], data: new Float32Array(2) }]]);
    await expect(writeSafetensors(path, wrong)).rejects.toMatchObject({ code: "ERR_SHAPE" });
    await expect(writeSafetensors(join(dir, "no", "x"), TENSORS)).rejects.toMatchObject({ code: "ERR_DISK" });
    expect(await readSafetensors(path)).toEqual(TENSORS);
    expect(await readdir(dir)).toEqual(["x.safetensors"]);
  });
});

describe("a file that cannot be trusted is refused", () => {
  test.each([
    ["missing", null, /cannot be opened/],
    ["empty", new Uint8Array(), /cut short/],
    ["not safetensors", Buffer.from("PK\u0003\u0004 not a tensor file at all"), /no safetensors file/],
    ["with a header that is no JSON", Buffer.from("\u0004\0\0\0\0\0\0\0{{{{"), /unreadable header/],
  ])("%s", async (_, bytes, message) => {
    const path = join(dir, "x.safetensors");
    if (bytes !== null) await writeFile(path, bytes);
    await expect(readSafetensors(path)).rejects.toMatchObject({
      code: "ERR_MODEL",
      message: expect.stringMatching(message),
    });
  });

  test("cut in its data", async () => {
    const path = join(dir, "x.safetensors");
    await writeSafetensors(path, TENSORS);
    await truncate(path, (await readFile(path)).length - 1);
    await expect(readSafetensors(path)).rejects.toMatchObject({
      code: "ERR_MODEL",
      message: expect.stringMatching(/cut short/),
    });
  });

  test.each([
    ["of a type we do not read", { dtype: "I64", shape: [1], data_offsets: [0, 8] }, /"x" is I64/],
    ["whose size and shape differ", { dtype: "F32", shape: [3], data_offsets: [0, 8] }, /8 bytes for "x" \[3\]/],
    ["without a shape", { dtype: "F32", data_offsets: [0, 8] }, /unreadable entry "x"/],
    ["that ends before it begins", { dtype: "F32", shape: [2], data_offsets: [8, 0] }, /-8 bytes/],
  ])("with a tensor %s", async (_, entry, message) => {
    const path = join(dir, "x.safetensors");
    await writeRaw(path, { x: entry }, new Uint8Array(8));
    await expect(readSafetensors(path)).rejects.toMatchObject({
      code: "ERR_MODEL",
      message: expect.stringMatching(message),
    });
  });
});

describe("a model folder", () => {
  test("in shards is read through its index", async () => {
    await writeSafetensors(join(dir, "one.safetensors"), new Map([["a", { shape: [1], data: Float32Array.of(1) }]]));
    await writeSafetensors(join(dir, "two.safetensors"), new Map([["b", { shape: [1], data: Float32Array.of(2) }]]));
    const index = { weight_map: { a: "one.safetensors", b: "two.safetensors" } };
    await writeFile(join(dir, "model.safetensors.index.json"), JSON.stringify(index));
    const weights = await readModelWeights(
      dir,
      new Map([
        ["b", [1]],
        ["a", [1]],
      ]),
    );
    expect([...weights.values()].map(({ data }) => data[0])).toEqual([2, 1]);
    await rm(join(dir, "two.safetensors"));
    await expect(openModelWeights(dir)).rejects.toMatchObject({
      code: "ERR_MODEL",
      message: expect.stringContaining("two.safetensors"),
    });
  });

  test("with a missing or misshapen weight is refused by its name", async () => {
    await writeSafetensors(join(dir, "model.safetensors"), TENSORS);
    await expect(readModelWeights(dir, new Map([["c", [1]]]))).rejects.toMatchObject({
      code: "ERR_MODEL",
      message: expect.stringMatching(/lacks 1 of 1 weights, the first is "c"/),
    });
    await expect(readModelWeights(dir, new Map([["b", [3, 2]]]))).rejects.toMatchObject({
      code: "ERR_MODEL",
      message: expect.stringMatching(/"b" has shape \[2, 3\].*\[3, 2\]/),
    });
  });
});
