import { readFile } from "node:fs/promises";
import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { AIRLINES, CITIES, TRAVELLERS, WHENS } from "../../edge/agents/flight/world.ts";
import { CHAT_TEMPLATE } from "../../models/chat-template.ts";
import { buildTokenizer, SPECIAL_TOKENS, tokenizerConfig, TOOL_CALL_TOKENS } from "../../models/tokenizer.ts";
import { vocabularyTexts } from "../../models/traces.ts";
import { makeTokenizer } from "../../trainer/model/tokenizer.ts";

const definition = buildTokenizer(vocabularyTexts());
const tokenizer = makeTokenizer(definition, tokenizerConfig(CHAT_TEMPLATE));

describe("the built-in tokenizer", () => {
  it("gives each name, city, airline, time and number one token, the same in every place it is copied between", () => {
    const tokensIn = (place: string): number[] => [...tokenizer.encode(place)];
    for (const word of [...TRAVELLERS, ...CITIES, ...WHENS]) {
      const id = tokenizer.idOf(word);
      expect(id).toBeDefined();
      for (const place of [`for "${word}" from`, `{"traveller": "${word}"}`, `"${word}".`, `": "${word}", "`])
        expect(tokensIn(place).filter((token) => token === id)).toHaveLength(1);
    }
    for (const airline of AIRLINES)
      for (const number of ["00", "07", "42", "99"])
        for (const place of [`["${airline}${number}", "`, `Booked "${airline}${number}".`])
          expect(tokensIn(place)).toEqual(expect.arrayContaining([tokenizer.idOf(airline), tokenizer.idOf(number)]));
  });

  it("round-trips any text", () => {
    fc.assert(
      fc.property(fc.string({ unit: "binary", minLength: 1 }), (text) => {
        fc.pre(![...SPECIAL_TOKENS].some((mark) => text.includes(mark)));
        // A lone surrogate has no UTF-8; it becomes U+FFFD before any tokenizer sees it.
        expect(tokenizer.decode(tokenizer.encode(text))).toBe(text.toWellFormed());
      }),
      { numRuns: 200 },
    );
  });

  it("keeps turn marks out of decoded text and tool call tags in it", () => {
    const ids = tokenizer.encode("<|im_start|>assistant\n<tool_call>\n{}\n</tool_call><|im_end|>");
    expect(tokenizer.decode(ids)).toBe("assistant\n<tool_call>\n{}\n</tool_call>");
    expect([...SPECIAL_TOKENS, ...TOOL_CALL_TOKENS].map((mark) => tokenizer.idOf(mark))).toEqual([0, 1, 2, 3, 4]);
  });

  it("counts its ids without gaps, to a multiple of sixteen", () => {
    const ids = Object.values(definition.model.vocab).toSorted((a, b) => a - b);
    expect(ids).toEqual(ids.map((_, index) => index));
    expect(ids.length % 16).toBe(0);
  });

  it("is the one that ships with the model", async () => {
    const shipped: unknown = JSON.parse(await readFile("models/flight/tokenizer.json", "utf8"));
    expect(shipped).toEqual(definition);
    const config: unknown = JSON.parse(await readFile("models/flight/tokenizer_config.json", "utf8"));
    expect(config).toEqual(tokenizerConfig(CHAT_TEMPLATE));
  });
});
