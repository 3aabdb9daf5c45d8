/**
 * Text ↔ token ids of a Hugging Face folder. Encoding is `@huggingface/tokenizers`' (its ids equal Python's);
 * decoding is our own, by bytes, because a token may end in the middle of a character.
 */

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { Tokenizer as HuggingFaceTokenizer } from "@huggingface/tokenizers";
import * as z from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";

/** Encodes text and decodes ids; holds no state between calls. */
export interface Tokenizer {
  /** Number of ids, special ones included; ids are 0 … vocab−1. */
  readonly vocab: number;
  /** Ids that mark structure (`<|im_end|>` and the like) and are not part of an answer's text. */
  readonly specialIds: ReadonlySet<number>;
  /** Ids of `text`, in which special tokens are recognised; none is added. */
  encode(text: string): Int32Array;
  /** UTF-8 bytes of one id, special or not; empty when there is no such id. */
  bytesOf(id: number): Uint8Array;
  /** Text of ids without the special ones; bytes that are no character come out as U+FFFD. */
  decode(ids: Iterable<number>): string;
  /** Id of exactly this token, such as `<|im_end|>`. */
  idOf(token: string): number | undefined;
}

const addedTokenSchema = z.looseObject({ id: z.int().nonnegative(), content: z.string(), special: z.boolean() });
const fileSchema = z.looseObject({
  model: z.looseObject({ vocab: z.unknown() }),
  decoder: z.unknown(),
  added_tokens: z.array(addedTokenSchema).default([]),
});

/**
 * Reads `tokenizer.json` and `tokenizer_config.json` of a model folder.
 * @throws FulgurError ERR_MODEL when there is none, or it cannot be used
 */
export async function loadTokenizer(modelDir: string): Promise<Tokenizer> {
  const path = join(modelDir, "tokenizer.json");
  try {
    const [definition, config] = await Promise.all([
      readFile(path, "utf8"),
      readFile(join(modelDir, "tokenizer_config.json"), "utf8").catch(() => "{}"),
    ]);
    return makeTokenizer(JSON.parse(definition), JSON.parse(config));
  } catch (cause) {
    if (cause instanceof FulgurError) throw cause;
    throw new FulgurError(
      "ERR_MODEL",
      `Cannot read ${path} (${messageOf(cause)}). Give a Hugging Face model folder with a tokenizer.json.`,
      { cause },
    );
  }
}

/**
 * Makes a tokenizer from the parsed contents of its two files.
 * @throws FulgurError ERR_MODEL when `definition` is no tokenizer.json
 */
export function makeTokenizer(definition: unknown, config: unknown): Tokenizer {
  const parsed = fileSchema.safeParse(definition);
  if (!parsed.success) {
    throw new FulgurError("ERR_MODEL", "tokenizer.json has no model.vocab. Give a Hugging Face tokenizer.json.");
  }
  const added = parsed.data.added_tokens;
  const known = typeof config === "object" && config !== null ? config : {};
  // The clean-up removes spaces before punctuation and would make decode(encode(x)) differ from x.
  const inner = new HuggingFaceTokenizer(parsed.data, { ...known, clean_up_tokenization_spaces: false });
  const pieces = inner.get_vocab(true);
  const specialIds = new Set(added.filter((token) => token.special).map((token) => token.id));
  const bytes = tokenBytes(pieces, added, JSON.stringify(parsed.data.decoder ?? {}));
  const bytesOf = (id: number): Uint8Array => bytes[id] ?? NO_BYTES;
  return {
    vocab: bytes.length,
    specialIds,
    encode: (text) => Int32Array.from(inner.encode(text, { add_special_tokens: false }).ids),
    bytesOf,
    decode(ids) {
      const parts: Uint8Array[] = [];
      for (const id of ids) if (!specialIds.has(id)) parts.push(bytesOf(id));
      return Buffer.concat(parts).toString("utf8");
    },
    idOf: (token) => pieces.get(token),
  };
}

/** Turns ids into text as they come, holding back the bytes of a character that is not complete yet. */
export class TextStream {
  readonly #tokenizer: Tokenizer;
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });

  constructor(tokenizer: Tokenizer) {
    this.#tokenizer = tokenizer;
  }

  /** The characters that this id completes; special ids give none. */
  push(id: number): string {
    if (this.#tokenizer.specialIds.has(id)) return "";
    return this.#decoder.decode(this.#tokenizer.bytesOf(id), { stream: true });
  }

  /** What is left at the end: U+FFFD where a character was cut, else nothing. */
  end(): string {
    return this.#decoder.decode();
  }
}

const NO_BYTES = new Uint8Array(0);
const encoder = new TextEncoder();

function tokenBytes(
  pieces: ReadonlyMap<string, number>,
  added: readonly z.infer<typeof addedTokenSchema>[],
  decoder: string,
): Uint8Array[] {
  const literal = new Set(added.map((token) => token.id));
  const byteLevel = decoder.includes('"ByteLevel"');
  const byteOfChar = byteLevel ? byteLevelAlphabet() : new Map<string, number>();
  const table: Uint8Array[] = [];
  for (const [piece, id] of pieces) {
    if (literal.has(id)) table[id] = encoder.encode(piece);
    else if (byteLevel) table[id] = Uint8Array.from(piece, (char) => byteOfChar.get(char) ?? 0x3f);
    else table[id] = sentencePieceBytes(piece);
  }
  for (let id = 0; id < table.length; id++) table[id] ??= NO_BYTES;
  return table;
}

/** `▁` is a space and `<0x0A>` a single byte, as in SentencePiece vocabularies. */
function sentencePieceBytes(piece: string): Uint8Array {
  const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(piece)?.[1];
  return byte === undefined ? encoder.encode(piece.replaceAll("▁", " ")) : Uint8Array.of(Number.parseInt(byte, 16));
}

/**
 * The byte ↔ character table of byte-level BPE: printable Latin-1 stands for itself, the other bytes
 * take the characters from U+0100 on, in order.
 * @see Radford et al. 2019, GPT-2's encoder
 */
function byteLevelAlphabet(): Map<string, number> {
  const table = new Map<string, number>();
  let next = 0x100;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    table.set(String.fromCodePoint(printable ? byte : next++), byte);
  }
  return table;
}
