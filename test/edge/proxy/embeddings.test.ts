import { describe, expect, it } from "vitest";
import { embeddingsDialect, embeddingsReader } from "../../../edge/proxy/embeddings.ts";

const head = { id: "ca_1", startedAt: 1, model: "embed" };
const history = (): never => {
  throw new Error("no history was expected");
};

describe("embeddings", () => {
  it("are nothing that a policy has", () => {
    expect(() => embeddingsDialect.parse('{"model":"flight","input":"x"}', { history })).toThrow(
      "model flight is a policy, which has no embeddings",
    );
  });

  it("that are whole are passed on unchanged and counted", () => {
    const answer = {
      object: "list",
      model: "theirs",
      data: [{ object: "embedding", index: 0, embedding: "AAAA" }],
      usage: { prompt_tokens: 3, total_tokens: 3 },
    };
    const reader = embeddingsReader(head, { promptCharacters: 40 });
    expect(reader.whole(answer)).toEqual(answer);
    expect(reader.gathered).toEqual({
      message: { content: null, reasoning: null, toolCalls: [] },
      finishReason: null,
      usage: { prompt_tokens: 3, completion_tokens: 0, total_tokens: 3 },
      model: "theirs",
    });
  });

  it("that say hardly anything are made whole; tokens are guessed", () => {
    const reader = embeddingsReader(head, { promptCharacters: 12 });
    expect(reader.whole({ data: [{ embedding: [1] }, { embedding: [2] }] })).toEqual({
      object: "list",
      model: "embed",
      data: [
        { object: "embedding", index: 0, embedding: [1] },
        { object: "embedding", index: 1, embedding: [2] },
      ],
      usage: { prompt_tokens: 3, total_tokens: 3 },
    });
  });
});
