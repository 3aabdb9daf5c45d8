/**
 * The built-in model's tokenizer: byte-level BPE without merges. Every word of the closed pools and of the texts the
 * model is made on is one token (`ignore_merges`), everything else is spelled in bytes, so any UTF-8 round-trips.
 * Tiny models copy well only what is one token: no merge learning could promise that for each slot.
 */

/** Tokens that never come from text: turn marks, padding. The order fixes their ids, 0 to 2. */
export const SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] as const;

/** Tokens with ids 3 and 4 that are written as text, so that a decoded answer shows its tool calls. */
export const TOOL_CALL_TOKENS = ["<tool_call>", "</tool_call>"] as const;

/**
 * Words (with the space before them), numbers by two digits, runs of white space, and runs of punctuation that may
 * span single spaces: `": "` is one piece. Plain ASCII classes only, so every regular expression dialect agrees.
 */
const PIECE = " ?[A-Za-z]+|[0-9]{1,2}|[\\t\\n\\r]+| ?[^\\sA-Za-z0-9]+(?: [^\\sA-Za-z0-9]+)*|[^A-Za-z0-9]+?";

/** A tokenizer as `tokenizer.json` holds it; ids are counted from 0 without gaps. */
export interface TokenizerJson {
  readonly model: { readonly vocab: Readonly<Record<string, number>> };
  readonly added_tokens: readonly { readonly id: number; readonly content: string }[];
}

/**
 * The `tokenizer.json` whose vocabulary is the 256 bytes and each piece of the texts.
 * @param texts all texts that must be cheap; turn marks in them separate pieces and are not counted
 * @param padTo the vocabulary is filled up with unused tokens to a multiple of this (kernels like round shapes)
 */
export function buildTokenizer(texts: Iterable<string>, padTo = 16): TokenizerJson {
  const marks: string[] = [...SPECIAL_TOKENS, ...TOOL_CALL_TOKENS];
  const added = marks.map((content, id) => ({
    id,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: id < SPECIAL_TOKENS.length,
  }));
  const bytes = byteLetters();
  const pieces = new Set<string>();
  const splitter = new RegExp(marks.map(escapeRegExp).join("|"), "u");
  for (const text of texts)
    for (const run of text.split(splitter))
      for (const [piece] of run.matchAll(new RegExp(PIECE, "gu"))) pieces.add(toByteLetters(piece, bytes));
  const tokens = [...marks, ...bytes, ...[...pieces].filter((piece) => piece.length > 1).toSorted()];
  for (let unused = 0; tokens.length % padTo !== 0; unused++) tokens.push(`<|unused_${unused}|>`);
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: added,
    normalizer: null,
    pre_tokenizer: {
      type: "Sequence",
      pretokenizers: [
        { type: "Split", pattern: { Regex: PIECE }, behavior: "Isolated", invert: false },
        { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false },
      ],
    },
    post_processor: null,
    decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: "BPE",
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: true,
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
      merges: [],
    },
  } as TokenizerJson;
}

/** The `tokenizer_config.json` beside it. */
export function tokenizerConfig(chatTemplate: string): Record<string, unknown> {
  return {
    tokenizer_class: "PreTrainedTokenizerFast",
    model_max_length: 512,
    bos_token: null,
    eos_token: "<|im_end|>",
    pad_token: "<|endoftext|>",
    unk_token: null,
    additional_special_tokens: ["<|im_start|>", "<|im_end|>"],
    // Without this line decoding drops spaces before punctuation.
    clean_up_tokenization_spaces: false,
    add_bos_token: false,
    chat_template: chatTemplate,
  };
}

/**
 * GPT-2's printable letter for each byte: 33–126, 161–172 and 174–255 stand for themselves, the rest for 256 onward.
 * @see Radford et al. 2019, byte-level BPE
 */
function byteLetters(): string[] {
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => {
    const itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    return String.fromCodePoint(itself ? byte : next++);
  });
}

function toByteLetters(piece: string, letters: readonly string[]): string {
  return Array.from(new TextEncoder().encode(piece), (byte) => letters[byte] ?? "").join("");
}

function escapeRegExp(text: string): string {
  return text.replaceAll(/[\\^$.*+?()[\]{}|/]/g, String.raw`\$&`);
}
