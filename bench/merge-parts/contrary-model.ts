import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { parseArchitecture, weightShapes } from "../../trainer/model/architecture.ts";
import { loadChatTemplate } from "../../trainer/model/chat-template.ts";
import { writeSafetensors, type Tensor } from "../../trainer/model/safetensors.ts";
import { loadTokenizer } from "../../trainer/model/tokenizer.ts";

/** What it writes: keys in another order than the tool's schema has them, spaced as no JSON library would. */
const CALL = '<tool_call>\n{"name": "search", "arguments": {"when":"noon",  "to":"Rome", "from":"Oslo"}}\n</tool_call>';

const tokenizerSchema = z.looseObject({
  added_tokens: z.array(z.looseObject({ id: z.int(), content: z.string() })),
  model: z.looseObject({ vocab: z.record(z.string(), z.int()) }),
});

/**
 * Writes a model that answers every chat with one tool call whose text no client gives back: what a client parses and writes
 * again has other spaces or another order of keys. It has another model's tokenizer and template, with the call as one token
 * more; its weights are a table: one-hot embeddings, a layer that does nothing, and a head that looks up the next token.
 * @param like folder of the model whose tokenizer and template it has
 */
export async function writeContraryModel(dir: string, like: string): Promise<void> {
  await mkdir(dir, { recursive: true });
  const definition = tokenizerSchema.parse(JSON.parse(await readFile(join(like, "tokenizer.json"), "utf8")));
  const [settings, tokenizer, template] = await Promise.all([
    readFile(join(like, "tokenizer_config.json"), "utf8"),
    loadTokenizer(like),
    loadChatTemplate(like),
  ]);
  const end = definition.added_tokens.find(({ content }) => content === "<|im_end|>")?.id;
  if (template === null || end === undefined) throw new Error(`${like} has no chat template, or none that is ChatML`);
  const header = tokenizer.encode(template.render({ messages: [{ role: "user", content: "x" }], tools: [] }, "answer"));
  const call = 1 + Math.max(...Object.values(definition.model.vocab), ...definition.added_tokens.map(({ id }) => id));
  const plain = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: false };
  const added = [...definition.added_tokens, { id: call, content: CALL, ...plain }];
  await writeJson(join(dir, "tokenizer.json"), { ...definition, added_tokens: added });
  await writeFile(join(dir, "tokenizer_config.json"), settings);

  // Two heads, each of an even width, and a dimension for each token.
  const width = 4 * Math.ceil((call + 1) / 4);
  const config = {
    model_type: "llama",
    ...{ vocab_size: call + 1, hidden_size: width, intermediate_size: 2, num_hidden_layers: 1 },
    ...{ num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 2048, rms_norm_eps: 1e-5 },
    ...{ rope_theta: 10_000, tie_word_embeddings: false, bos_token_id: null, eos_token_id: end },
  };
  await writeJson(join(dir, "config.json"), config);
  await writeJson(join(dir, "generation_config.json"), { eos_token_id: end });
  const tensors = new Map<string, Tensor>();
  for (const [name, shape] of weightShapes(parseArchitecture(config))) {
    const data = new Float32Array(shape.reduce((product, size) => product * size, 1));
    if (name.includes("norm")) data.fill(1);
    if (name === "model.embed_tokens.weight")
      for (let token = 0; token <= call; token++) data[token * width + token] = 1;
    // RMSNorm makes the one of a one-hot vector √width, so that this is a logit of 40 and more.
    if (name === "lm_head.weight") {
      data[call * width + (header.at(-1) ?? 0)] = 2;
      data[end * width + call] = 2;
    }
    tensors.set(name, { shape, data });
  }
  await writeSafetensors(join(dir, "model.safetensors"), tensors);
}

async function writeJson(path: string, value: unknown): Promise<void> {
  await writeFile(path, `${JSON.stringify(value, null, 2)}\n`);
}
