import { join } from "node:path";
import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { AppendFile } from "./append-file.ts";
import { crc32c } from "./crc32c.ts";
import type { MetricSink, StepPoint } from "./sink.ts";

/** `SessionLog.START` */
const SESSION_START = 1;

/**
 * TensorBoard's event files: one for each start of the trainer, `events.out.tfevents.<seconds>.fulgur.<pid>`, which
 * TensorBoard reads in the order of their names. A scalar for each metric, under its key as the tag.
 *
 * A file is a line of TFRecords, each an `Event` in protobuf; field numbers are those of TensorFlow's `event.proto` and
 * `summary.proto`.
 * @see https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
 */
export class TensorBoardFile implements MetricSink {
  readonly name: string;
  readonly #file: AppendFile;
  readonly #startedAt: number;

  /** @param startedAt of this start of the trainer, milliseconds since the epoch */
  constructor(dir: string, { startedAt, pid }: { readonly startedAt: number; readonly pid: number }) {
    // Ten digits, so that the order of names is the order of time.
    const seconds = String(Math.floor(startedAt / 1000)).padStart(10, "0");
    this.name = join(dir, `events.out.tfevents.${seconds}.fulgur.${pid}`);
    this.#file = new AppendFile(this.name);
    this.#startedAt = startedAt;
  }

  /** The first record names the format; the second takes back what an earlier start wrote of the steps to come. */
  async open(after: number): Promise<void> {
    await this.#file.open();
    const version = eventAt(this.#startedAt);
    version.tag(3, WireType.LengthDelimited).string("brain.Event:2");
    const session = eventAt(this.#startedAt);
    session.tag(2, WireType.Varint).int64(after + 1);
    session.tag(7, WireType.LengthDelimited).fork().tag(1, WireType.Varint).int32(SESSION_START).join();
    await this.#file.append(Buffer.concat([tfRecord(version.finish()), tfRecord(session.finish())]));
  }

  async write(point: StepPoint): Promise<void> {
    await this.#file.append(tfRecord(scalarsEvent(point)));
  }

  async close(): Promise<void> {
    await this.#file.close();
  }
}

/** An `Event` with its `wall_time` (1). */
function eventAt(ms: number): BinaryWriter {
  return new BinaryWriter().tag(1, WireType.Bit64).double(ms / 1000);
}

/** `Event { step = 2, summary = 5 { value = 1 { tag = 1, simple_value = 2 } } }` */
function scalarsEvent({ step, time, metrics }: StepPoint): Uint8Array {
  const event = eventAt(time);
  event.tag(2, WireType.Varint).int64(step);
  event.tag(5, WireType.LengthDelimited).fork();
  for (const [key, value] of Object.entries(metrics)) {
    event.tag(1, WireType.LengthDelimited).fork();
    event.tag(1, WireType.LengthDelimited).string(key);
    event.tag(2, WireType.Bit32).float(Math.fround(value)); // beyond float32 is infinity, not an error
    event.join();
  }
  return event.join().finish();
}

/** Length (8 bytes), its checksum (4), the data, its checksum (4); little-endian. */
export function tfRecord(data: Uint8Array): Uint8Array {
  const record = new Uint8Array(data.length + 16);
  const view = new DataView(record.buffer);
  view.setBigUint64(0, BigInt(data.length), true);
  view.setUint32(8, maskedCrc(record.subarray(0, 8)), true);
  record.set(data, 12);
  view.setUint32(12 + data.length, maskedCrc(data), true);
  return record;
}

/** Rotated and moved, because a checksum of data that holds checksums is a poor one. */
function maskedCrc(bytes: Uint8Array): number {
  const crc = crc32c(bytes);
  return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
}
