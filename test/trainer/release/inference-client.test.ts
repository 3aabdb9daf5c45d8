import { describe, expect, it } from "vitest";
import { inferenceClient } from "../../../trainer/release/inference-client.ts";

interface Asked {
  readonly path: string;
  readonly body: unknown;
}

/** A client of an endpoint that gives the answers in turn. */
function clientOf(...answers: readonly (Response | Error)[]) {
  const asked: Asked[] = [];
  const left = [...answers];
  const client = inferenceClient({
    baseUrl: "http://inference",
    key: () => Promise.resolve("t.o.k"),
    fetch: async (input, init) => {
      if (typeof input !== "string" || typeof init?.body !== "string")
        throw new TypeError("a URL and a JSON text were expected");
      expect(new Headers(init.headers).get("authorization")).toBe("Bearer t.o.k");
      asked.push({ path: new URL(input).pathname, body: JSON.parse(init.body) });
      const answer = left.shift() ?? new Error("no answer left");
      if (answer instanceof Error) throw answer;
      return answer;
    },
  });
  return { client, asked };
}

const refused = (status: number, message: string) => Response.json({ error: { message } }, { status });

describe("inferenceClient", () => {
  it("loads by name and folder; a name that is loaded is loaded", async () => {
    const { client, asked } = clientOf(
      new Response("Success"),
      refused(400, "The lora adapter 'flight@3' has already been loaded."),
    );
    await client.load("flight@3", "/versions/3");
    await client.load("flight@3", "/versions/3");
    expect(asked).toEqual([
      { path: "/v1/load_lora_adapter", body: { lora_name: "flight@3", lora_path: "/versions/3" } },
      { path: "/v1/load_lora_adapter", body: { lora_name: "flight@3", lora_path: "/versions/3" } },
    ]);
  });

  it("tells a refused artifact from an endpoint that is away or overloaded", async () => {
    const { client } = clientOf(
      refused(400, "sha256 differs"),
      refused(503, "starting"),
      new TypeError("fetch failed"),
    );
    await expect(client.load("flight@3", "/v")).rejects.toMatchObject({
      code: "ERR_CHECKPOINT",
      message: expect.stringContaining("sha256 differs"),
    });
    await expect(client.load("flight@3", "/v")).rejects.toMatchObject({ code: "ERR_UPSTREAM" });
    await expect(client.load("flight@3", "/v")).rejects.toMatchObject({
      code: "ERR_UPSTREAM",
      message: expect.stringContaining("is it running?"),
    });
  });

  it("takes a version that is not there for unloaded", async () => {
    const { client } = clientOf(refused(404, "no such adapter"), new Response("ok"), refused(500, "broken"));
    await client.unload("flight@1");
    await client.unload("flight@1");
    await expect(client.unload("flight@1")).rejects.toMatchObject({ code: "ERR_UPSTREAM" });
  });

  it("proves a version by an answer under its own name", async () => {
    const answer = (model: string) => Response.json({ model, choices: [{ text: "a" }] });
    const { client, asked } = clientOf(
      answer("flight@3"),
      answer("flight@2"),
      refused(404, "model_not_found"),
      Response.json({}),
    );
    await client.prove("flight@3");
    expect(asked[0]).toEqual({
      path: "/v1/completions",
      body: { model: "flight@3", prompt: "a", max_tokens: 1, temperature: 0 },
    });
    await expect(client.prove("flight@3")).rejects.toThrow(
      "flight@3 was asked for and flight@2 answered; calls are not routed to it",
    );
    await expect(client.prove("flight@3")).rejects.toThrow("flight@3 does not answer: 404");
    await expect(client.prove("flight@3")).rejects.toThrow("an answer of another form answered");
  });
});
