import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BinaryReader } from "@bufbuild/protobuf/wire";
import { afterEach, beforeEach, expect, it } from "vitest";
import { crc32c } from "../../../trainer/metrics/crc32c.ts";
import { TensorBoardFile, tfRecord } from "../../../trainer/metrics/tensorboard.ts";

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-tensorboard-"));
});
afterEach(async () => {
  await rm(dir, { recursive: true });
});

interface Event {
  wallTime?: number;
  step?: number;
  fileVersion?: string;
  sessionStatus?: number;
  scalars?: Record<string, number>;
}

/** The records of a file, each length and each datum checked against its checksum, as TensorBoard does. */
function recordsOf(file: Uint8Array): Uint8Array[] {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const records: Uint8Array[] = [];
  for (let at = 0; at < file.length;) {
    const length = Number(view.getBigUint64(at, true));
    const data = file.subarray(at + 12, at + 12 + length);
    expect(unmasked(view.getUint32(at + 8, true))).toBe(crc32c(file.subarray(at, at + 8)));
    expect(unmasked(view.getUint32(at + 12 + length, true))).toBe(crc32c(data));
    records.push(data);
    at += length + 16;
  }
  return records;
}

/** The inverse of TFRecord's mask, by its definition. */
function unmasked(masked: number): number {
  const rotated = (masked - 0xa282ead8) >>> 0;
  return ((rotated >>> 17) | (rotated << 15)) >>> 0;
}

function eventOf(data: Uint8Array): Event {
  const event: Event = {};
  fields(new BinaryReader(data), {
    1: (reader) => (event.wallTime = reader.double()),
    2: (reader) => (event.step = Number(reader.int64())),
    3: (reader) => (event.fileVersion = reader.string()),
    5: (reader) => (event.scalars = summaryOf(reader.bytes())),
    7: (reader) => fields(new BinaryReader(reader.bytes()), { 1: (log) => (event.sessionStatus = log.int32()) }),
  });
  return event;
}

function summaryOf(data: Uint8Array): Record<string, number> {
  const scalars: Record<string, number> = {};
  fields(new BinaryReader(data), {
    1: (summary) => {
      let tag = "";
      let value = Number.NaN;
      fields(new BinaryReader(summary.bytes()), {
        1: (reader) => (tag = reader.string()),
        2: (reader) => (value = reader.float()),
      });
      scalars[tag] = value;
    },
  });
  return scalars;
}

function fields(reader: BinaryReader, known: Readonly<Record<number, (reader: BinaryReader) => unknown>>): void {
  while (reader.pos < reader.len) {
    const [field, type] = reader.tag();
    const read = known[field];
    if (read === undefined) reader.skip(type, field);
    else read(reader);
  }
}

async function session(startedAt: number, after: number, steps: readonly number[]): Promise<void> {
  const file = new TensorBoardFile(dir, { startedAt, pid: 7 });
  await file.open(after);
  for (const step of steps) {
    await file.write({ step, time: startedAt + step, metrics: { loss: -step / 4, "reward_mean/role/é": 1e39 } });
  }
  await file.close();
}

it("frames a record with its length and masked checksums", () => {
  // Hand-computed with Python's google_crc32c: masked(crc32c(x)) = rotr15(crc32c(x)) + 0xa282ead8.
  const record = Buffer.from(tfRecord(new TextEncoder().encode("123456789")));
  expect(record.subarray(0, 8).toString("hex")).toBe("0900000000000000");
  expect(record.length).toBe(9 + 16);
  expect(recordsOf(record).map((data) => Buffer.from(data).toString())).toEqual(["123456789"]);
  expect(record.readUInt32LE(21)).toBe((((0xe3069283 >>> 15) | (0xe3069283 << 17)) + 0xa282ead8) >>> 0);
});

it("writes a version, the start of a session, and an event for each step", async () => {
  await session(1_700_000_000_000, 0, [1, 2]);
  expect(await readdir(dir)).toEqual(["events.out.tfevents.1700000000.fulgur.7"]);
  const [first = ""] = await readdir(dir);
  const events = recordsOf(await readFile(join(dir, first))).map(eventOf);
  expect(events).toEqual([
    { wallTime: 1_700_000_000, fileVersion: "brain.Event:2" },
    { wallTime: 1_700_000_000, step: 1, sessionStatus: 1 },
    // What float32 cannot hold is infinity.
    { wallTime: 1_700_000_000.001, step: 1, scalars: { loss: -0.25, "reward_mean/role/é": Infinity } },
    { wallTime: 1_700_000_000.002, step: 2, scalars: { loss: -0.5, "reward_mean/role/é": Infinity } },
  ]);
});

it("begins another file at each start, which takes back the steps to come, in the order of names", async () => {
  await session(999_999_999_000, 0, [1, 2, 3]);
  await session(1_000_000_000_000, 2, [3]);
  const names = await readdir(dir);
  expect(names).toEqual(["events.out.tfevents.0999999999.fulgur.7", "events.out.tfevents.1000000000.fulgur.7"]);
  const [, session2] = recordsOf(await readFile(join(dir, names[1] ?? ""))).map(eventOf);
  expect(session2).toMatchObject({ step: 3, sessionStatus: 1 });
});
