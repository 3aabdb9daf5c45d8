/**
 * The safetensors file format: an 8-byte little-endian header length, a JSON header of
 * name → {dtype, shape, data_offsets}, then the raw tensors. Everything is float32 in memory.
 */

import { type FileHandle, open, readFile, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import * as z from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";

/** A dense row-major tensor. */
export interface Tensor {
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

/** How numbers are stored in a file. */
export type StoredType = "F32" | "F16" | "BF16";

/** An open checkpoint: the index is read, tensors are read when asked for. */
export interface TensorFile {
  readonly names: readonly string[];
  /** @throws FulgurError ERR_MODEL when there is no such tensor */
  shapeOf(name: string): readonly number[];
  /** Reads one tensor as float32, straight into its own buffer. @throws FulgurError ERR_MODEL as `shapeOf` */
  read(name: string, options?: ReadOptions): Promise<Tensor>;
  readonly metadata: Readonly<Record<string, string>>;
  close(): Promise<void>;
}

/** Where tensors are read to. */
export interface ReadOptions {
  /** Whether into memory that worker threads share. */
  readonly shared?: boolean;
}

const BYTES: Readonly<Record<StoredType, number>> = { F32: 4, F16: 2, BF16: 2 };
const MAX_HEADER_BYTES = 100_000_000;

const entrySchema = z.object({
  dtype: z.string(),
  shape: z.array(z.int().nonnegative()),
  data_offsets: z.tuple([z.int().nonnegative(), z.int().nonnegative()]),
});
const metadataSchema = z.record(z.string(), z.string());
const indexSchema = z.looseObject({ weight_map: z.record(z.string(), z.string()) });

interface Entry {
  readonly dtype: StoredType;
  readonly shape: readonly number[];
  /** Position of the first byte in the file. */
  readonly begin: number;
  readonly end: number;
}

/**
 * Opens one safetensors file and checks its header against its size.
 * @throws FulgurError ERR_MODEL when it is missing, cut short, or not safetensors
 */
export async function openSafetensors(path: string): Promise<TensorFile> {
  let file: FileHandle;
  try {
    file = await open(path, "r");
  } catch (cause) {
    throw corrupt(path, `cannot be opened (${messageOf(cause)})`, cause);
  }
  try {
    const { size } = await file.stat();
    return await openSource({
      path,
      size,
      read: (into, position) => readExactly(file, into, position, path),
      close: () => file.close(),
    });
  } catch (error) {
    await file.close();
    throw error;
  }
}

/**
 * Opens a safetensors file whose bytes are in memory: many small tensors are read from there without a wait for each.
 * @param path what errors call it
 * @throws FulgurError ERR_MODEL as `openSafetensors`
 */
export function openSafetensorsBytes(bytes: Uint8Array, path: string): Promise<TensorFile> {
  return openSource({
    path,
    size: bytes.length,
    read: async (into, position) => into.set(bytes.subarray(position, position + into.length)),
    close: async () => {},
  });
}

/** Where the bytes of a file come from. */
interface Source {
  readonly path: string;
  readonly size: number;
  /** Fills `into` with the bytes that begin at a position. */
  readonly read: (into: Uint8Array, position: number) => Promise<void>;
  readonly close: () => Promise<void>;
}

async function openSource(source: Source): Promise<TensorFile> {
  const { entries, metadata } = await readHeader(source);
  const entryOf = (name: string): Entry => {
    const entry = entries.get(name);
    if (entry === undefined) throw new FulgurError("ERR_MODEL", `${source.path} has no tensor "${name}".`);
    return entry;
  };
  return {
    names: [...entries.keys()],
    metadata,
    shapeOf: (name) => entryOf(name).shape,
    read: async (name, { shared = false } = {}) => {
      const entry = entryOf(name);
      return { shape: entry.shape, data: await readTensor(source, entry, { shared }) };
    },
    close: source.close,
  };
}

/**
 * Opens the weights of a Hugging Face folder: `model.safetensors`, or the shards that
 * `model.safetensors.index.json` lists.
 * @throws FulgurError ERR_MODEL when there are no weights, or a shard is missing or corrupt
 */
export async function openModelWeights(modelDir: string): Promise<TensorFile> {
  const indexPath = join(modelDir, "model.safetensors.index.json");
  let indexText: string;
  try {
    indexText = await readFile(indexPath, "utf8");
  } catch {
    return openSafetensors(join(modelDir, "model.safetensors"));
  }
  const index = indexSchema.safeParse(parseJson(indexText));
  if (!index.success) throw corrupt(indexPath, "has no weight_map");
  const shards = new Map<string, TensorFile>();
  const close = async (): Promise<void> => {
    await Promise.all([...shards.values()].map((shard) => shard.close()));
  };
  try {
    for (const shard of new Set(Object.values(index.data.weight_map))) {
      shards.set(shard, await openSafetensors(join(modelDir, shard)));
    }
  } catch (error) {
    await close();
    throw error;
  }
  const shardOf = (name: string): TensorFile => {
    const shard = shards.get(index.data.weight_map[name] ?? "");
    if (shard === undefined) throw new FulgurError("ERR_MODEL", `${indexPath} lists no tensor "${name}".`);
    return shard;
  };
  return {
    names: Object.keys(index.data.weight_map),
    metadata: {},
    shapeOf: (name) => shardOf(name).shapeOf(name),
    read: (name, options) => shardOf(name).read(name, options),
    close,
  };
}

/**
 * Reads a whole safetensors file.
 * @throws FulgurError ERR_MODEL as `openSafetensors`
 */
export async function readSafetensors(path: string): Promise<Map<string, Tensor>> {
  const file = await openSafetensors(path);
  try {
    const tensors = new Map<string, Tensor>();
    for (const name of file.names) tensors.set(name, await file.read(name));
    return tensors;
  } finally {
    await file.close();
  }
}

/**
 * Reads the weights that `shapes` names from a model folder and checks every shape.
 * @param shapes name → shape, as `weightShapes` of the architecture gives
 * @throws FulgurError ERR_MODEL when one is missing or has another shape
 */
export async function readModelWeights(
  modelDir: string,
  shapes: ReadonlyMap<string, readonly number[]>,
  options?: ReadOptions,
): Promise<Map<string, Tensor>> {
  return readChecked(await openModelWeights(modelDir), modelDir, shapes, options);
}

/**
 * Reads the tensors that `shapes` names from one file and checks every shape.
 * @throws FulgurError ERR_MODEL when one is missing or has another shape
 */
export async function readTensors(
  path: string,
  shapes: ReadonlyMap<string, readonly number[]>,
): Promise<Map<string, Tensor>> {
  return readChecked(await openSafetensors(path), path, shapes);
}

async function readChecked(
  file: TensorFile,
  source: string,
  shapes: ReadonlyMap<string, readonly number[]>,
  options?: ReadOptions,
): Promise<Map<string, Tensor>> {
  try {
    const present = new Set(file.names);
    const missing = [...shapes.keys()].filter((name) => !present.has(name));
    if (missing.length > 0) {
      throw new FulgurError(
        "ERR_MODEL",
        `${source} lacks ${missing.length} of ${shapes.size} weights, the first is "${missing[0]}"; its weights and its config do not belong together.`,
      );
    }
    const tensors = new Map<string, Tensor>();
    for (const [name, shape] of shapes) {
      const found = file.shapeOf(name);
      if (found.join() !== shape.join()) {
        throw new FulgurError(
          "ERR_MODEL",
          `${source}: "${name}" has shape [${found.join(", ")}], but its config asks for [${shape.join(", ")}].`,
        );
      }
      tensors.set(name, await file.read(name, options));
    }
    return tensors;
  } finally {
    await file.close();
  }
}

/** How `writeSafetensors` stores the numbers. */
export interface WriteOptions {
  /** F32 keeps every bit; BF16 halves the file, rounding to nearest even. */
  readonly dtype?: "F32" | "BF16";
  readonly metadata?: Readonly<Record<string, string>>;
}

/**
 * Writes tensors aside, syncs and renames, so that the path holds the old file or the whole new one.
 * @param tensors name → tensor; the order is kept
 * @throws FulgurError ERR_DISK when it cannot be written; the path is then untouched
 */
export async function writeSafetensors(
  path: string,
  tensors: ReadonlyMap<string, Tensor>,
  options: WriteOptions = {},
): Promise<void> {
  const { dtype = "F32", metadata = { format: "pt" } } = options;
  const header: Record<string, unknown> = { __metadata__: metadata };
  let offset = 0;
  for (const [name, { shape, data }] of tensors) {
    if (elements(shape) !== data.length) {
      throw new FulgurError("ERR_SHAPE", `"${name}" has ${data.length} numbers for shape [${shape.join(", ")}].`);
    }
    const end = offset + data.length * BYTES[dtype];
    header[name] = { dtype, shape, data_offsets: [offset, end] };
    offset = end;
  }
  const json = Buffer.from(JSON.stringify(header));
  // Padding with spaces to 8 keeps every tensor aligned for readers that map the file.
  const padded = Buffer.alloc(Math.ceil(json.length / 8) * 8, " ");
  json.copy(padded);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));

  const aside = `${path}.${process.pid}.tmp`;
  try {
    const file = await open(aside, "w");
    try {
      await file.writev([length, padded]);
      for (const { data } of tensors.values()) {
        const stored = dtype === "F32" ? data : toBfloat16(data);
        await writeAll(file, new Uint8Array(stored.buffer, stored.byteOffset, stored.byteLength));
      }
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(aside, path);
    await syncFolder(dirname(path));
  } catch (cause) {
    await rm(aside, { force: true });
    throw new FulgurError(
      "ERR_DISK",
      `Cannot write ${path} (${messageOf(cause)}). Check that the folder exists and the disk has ${offset} bytes free.`,
      { cause },
    );
  }
}

/** Makes a rename in this folder survive a power loss. */
export async function syncFolder(dir: string): Promise<void> {
  const folder = await open(dir, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

async function readHeader({
  path,
  size,
  read,
}: Source): Promise<{ entries: Map<string, Entry>; metadata: Record<string, string> }> {
  if (size < 8) throw corrupt(path, `is cut short (${size} bytes)`);
  const prefix = Buffer.alloc(8);
  await read(prefix, 0);
  const headerBytes = Number(prefix.readBigUInt64LE());
  if (headerBytes > MAX_HEADER_BYTES || 8 + headerBytes > size) {
    throw corrupt(path, `is no safetensors file or is cut short (header of ${headerBytes} bytes in a file of ${size})`);
  }
  const text = Buffer.alloc(headerBytes);
  await read(text, 8);
  const json = parseJson(text.toString("utf8"));
  if (typeof json !== "object" || json === null || Array.isArray(json)) throw corrupt(path, "has an unreadable header");
  const entries = new Map<string, Entry>();
  let metadata: Record<string, string> = {};
  const dataStart = 8 + headerBytes;
  for (const [name, value] of Object.entries(json)) {
    if (name === "__metadata__") {
      metadata = metadataSchema.catch({}).parse(value);
      continue;
    }
    const parsed = entrySchema.safeParse(value);
    if (!parsed.success) throw corrupt(path, `has an unreadable entry "${name}"`);
    const { dtype, shape, data_offsets } = parsed.data;
    const [begin, end] = data_offsets;
    if (!isStoredType(dtype)) {
      throw new FulgurError("ERR_MODEL", `${path}: "${name}" is ${dtype}; only F32, F16 and BF16 are supported.`);
    }
    if (end - begin !== elements(shape) * BYTES[dtype]) {
      throw corrupt(path, `has ${end - begin} bytes for "${name}" [${shape.join(", ")}] ${dtype}`);
    }
    if (dataStart + end > size)
      throw corrupt(path, `is cut short: "${name}" ends at byte ${dataStart + end} of ${size}`);
    entries.set(name, { dtype, shape, begin: dataStart + begin, end: dataStart + end });
  }
  return { entries, metadata };
}

async function readTensor(
  { read }: Source,
  entry: Entry,
  { shared }: { readonly shared: boolean },
): Promise<Float32Array> {
  const { dtype, begin } = entry;
  const size = elements(entry.shape) * 4;
  const buffer = shared ? new SharedArrayBuffer(size) : new ArrayBuffer(size);
  const values = new Float32Array(buffer);
  if (dtype === "F32") {
    await read(new Uint8Array(buffer), begin);
    return values;
  }
  const expand = dtype === "BF16" ? fromBfloat16 : fromFloat16;
  // Piece by piece: an embedding's halves would else lie beside it whole.
  const halves = new Uint16Array(Math.min(PIECE, values.length));
  for (let at = 0; at < values.length; at += PIECE) {
    const piece = halves.subarray(0, Math.min(PIECE, values.length - at));
    await read(new Uint8Array(piece.buffer, 0, piece.byteLength), begin + at * 2);
    expand(piece, values.subarray(at, at + piece.length));
  }
  return values;
}

/** Numbers that are expanded at once. */
const PIECE = 2 ** 22;

async function readExactly(file: FileHandle, into: Uint8Array, position: number, path: string): Promise<void> {
  let done = 0;
  while (done < into.length) {
    const { bytesRead } = await file.read(into, done, Math.min(into.length - done, 2 ** 30), position + done);
    if (bytesRead === 0) throw corrupt(path, "became shorter while it was read");
    done += bytesRead;
  }
}

async function writeAll(file: FileHandle, bytes: Uint8Array): Promise<void> {
  let done = 0;
  while (done < bytes.length) {
    const { bytesWritten } = await file.write(bytes, done, Math.min(bytes.length - done, 2 ** 30));
    done += bytesWritten;
  }
}

function fromBfloat16(halves: Uint16Array, into: Float32Array): void {
  const bits = new Uint32Array(into.buffer, into.byteOffset, into.length);
  for (let i = 0; i < halves.length; i++) bits[i] = (halves[i] ?? 0) << 16;
}

function toBfloat16(values: Float32Array): Uint16Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const halves = new Uint16Array(values.length);
  for (let i = 0; i < bits.length; i++) {
    const word = bits[i] ?? 0;
    const isNan = (word & 0x7fffffff) > 0x7f800000;
    // Round to nearest even; a NaN keeps its quiet bit, which rounding could carry into infinity.
    halves[i] = isNan ? (word >>> 16) | 0x40 : (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
  }
  return halves;
}

function fromFloat16(halves: Uint16Array, into: Float32Array): void {
  for (let i = 0; i < halves.length; i++) {
    const half = halves[i] ?? 0;
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >> 10) & 0x1f;
    const fraction = half & 0x3ff;
    if (exponent === 0) into[i] = sign * fraction * 2 ** -24;
    else if (exponent === 31) into[i] = fraction === 0 ? sign * Infinity : NaN;
    else into[i] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
}

function isStoredType(dtype: string): dtype is StoredType {
  return Object.hasOwn(BYTES, dtype);
}

function elements(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function corrupt(path: string, what: string, cause?: unknown): FulgurError {
  return new FulgurError("ERR_MODEL", `${path} ${what}. Fetch or export the model again.`, { cause });
}
