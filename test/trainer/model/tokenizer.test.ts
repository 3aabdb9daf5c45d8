import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { loadTokenizer, makeTokenizer, TextStream } from "../../../trainer/model/tokenizer.ts";
import { tinyTokenizer } from "../inference/tiny-model.ts";

const tokenizer = makeTokenizer(tinyTokenizer(), { clean_up_tokenization_spaces: true });

describe("a byte-level tokenizer", () => {
  test("merges what its merges say and knows its special tokens", () => {
    expect(Array.from(tokenizer.encode("tool<|im_end|>"))).toEqual([258, 264]);
    expect(tokenizer.idOf("<|im_end|>")).toBe(264);
    expect(tokenizer.specialIds).toEqual(new Set([262, 263, 264]));
    expect(tokenizer.vocab).toBe(265);
  });

  test("any text comes back from its ids", () => {
    fc.assert(
      fc.property(fc.string({ unit: "binary" }), (text) => {
        expect(tokenizer.decode(tokenizer.encode(text))).toBe(text);
      }),
    );
  });

  test("decoding leaves special tokens out, bytesOf does not", () => {
    expect(tokenizer.decode([116, 264, 258])).toBe("ttool");
    expect(Buffer.from(tokenizer.bytesOf(264)).toString()).toBe("<|im_end|>");
    expect(tokenizer.bytesOf(9999)).toHaveLength(0);
  });

  test("spaces before punctuation survive, whatever the config says", () => {
    expect(tokenizer.decode(tokenizer.encode("a , b ."))).toBe("a , b .");
  });
});

describe("text that streams", () => {
  test("a character is given when its last byte has come, and not in pieces", () => {
    const stream = new TextStream(tokenizer);
    const ids = tokenizer.encode("é🚀");
    const given = Array.from(ids, (id) => stream.push(id));
    expect(given.join("")).toBe("é🚀");
    expect(given.every((text) => text === "" || text === "é" || text === "🚀")).toBe(true);
    expect(stream.end()).toBe("");
  });

  test("a character that was cut ends as U+FFFD", () => {
    const stream = new TextStream(tokenizer);
    const [first = 0] = tokenizer.encode("é");
    expect(stream.push(first)).toBe("");
    expect(stream.end()).toBe("\uFFFD");
  });
});

describe("a SentencePiece vocabulary", () => {
  test("decodes word marks as spaces and byte pieces as bytes", () => {
    const pieces = makeTokenizer(
      {
        added_tokens: [],
        normalizer: null,
        pre_tokenizer: null,
        post_processor: null,
        decoder: { type: "Sequence", decoders: [{ type: "ByteFallback" }, { type: "Fuse" }] },
        model: {
          type: "BPE",
          vocab: { "▁hi": 0, "<0xC3>": 1, "<0xA9>": 2 },
          merges: [],
          byte_fallback: true,
          ignore_merges: false,
        },
      },
      {},
    );
    expect(pieces.decode([0, 1, 2])).toBe(" hié");
  });
});

describe("a folder without a tokenizer", () => {
  let dir = "";
  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), "fulgur-tokenizer-"));
  });
  afterAll(() => rm(dir, { recursive: true }));

  test("is refused with a sentence that names the file", async () => {
    await expect(loadTokenizer(dir)).rejects.toThrow(/Cannot read .*tokenizer\.json.*Give a Hugging Face model folder/);
  });
});
