import { describe, expect, it } from "vitest";
import { inferenceClient } from "#shared/inference-client.ts";

interface Asked {
  readonly path: string;
  readonly body?: unknown;
}

/** A client of an endpoint that gives the answers in turn. */
function clientOf(...answers: readonly (Response | Error)[]) {
  const asked: Asked[] = [];
  const left = [...answers];
  const client = inferenceClient({
    baseUrl: "http://inference",
    key: () => Promise.resolve("t.o.k"),
    fetch: async (input, init) => {
      if (typeof input !== "string") throw new TypeError("a URL was expected");
      expect(new Headers(init?.headers).get("authorization")).toBe("Bearer t.o.k");
      const body: unknown = typeof init?.body === "string" ? JSON.parse(init.body) : undefined;
      asked.push({ path: new URL(input).pathname, ...(body === undefined ? {} : { body }) });
      const answer = left.shift() ?? new Error("no answer left");
      if (answer instanceof Error) throw answer;
      return answer;
    },
    pause: () => Promise.resolve(),
  });
  return { client, asked };
}

const refused = (status: number, message: string) => Response.json({ error: { message } }, { status });
const models = (...data: readonly { id: string; root?: string; parent?: string | null }[]) => Response.json({ data });
/** Of the built-in endpoint, which waits for running requests itself. */
const noAdapters = () => new Response("vllm:num_requests_running 1\n");

describe("inferenceClient", () => {
  it("loads by name and folder", async () => {
    const { client, asked } = clientOf(new Response("Success"));
    await client.load("flight@3", "/versions/3");
    expect(asked).toEqual([
      { path: "/v1/load_lora_adapter", body: { lora_name: "flight@3", lora_path: "/versions/3" } },
    ]);
  });

  it("takes a name that is loaded for loaded, unless it is another folder's: names are never reused", async () => {
    const already = () => refused(400, "The lora adapter 'flight@3' has already been loaded.");
    const card = (root: string) => models({ id: "base" }, { id: "flight@3", root, parent: "base" });
    const { client, asked } = clientOf(already(), card("/versions/3"), already(), card("/elsewhere/3"));
    await client.load("flight@3", "/versions/3");
    expect(asked.map(({ path }) => path)).toEqual(["/v1/load_lora_adapter", "/v1/models"]);
    await expect(client.load("flight@3", "/versions/3")).rejects.toMatchObject({
      code: "ERR_CHECKPOINT",
      message: expect.stringContaining("has flight@3 from /elsewhere/3"),
    });
  });

  it("takes the name that vLLM serves its base model under for loaded, wherever that came from", async () => {
    const { client } = clientOf(
      refused(400, "The lora adapter 'flight@0' conflicts with a served base model."),
      models({ id: "flight@0", root: "/models/copy", parent: null }),
    );
    await expect(client.load("flight@0", "/versions/0")).resolves.toBeUndefined();
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
    const { client } = clientOf(
      ...[noAdapters(), refused(404, "no such adapter")],
      ...[noAdapters(), new Response("ok")],
      ...[noAdapters(), refused(500, "broken")],
    );
    await client.unload("flight@1");
    await client.unload("flight@1");
    await expect(client.unload("flight@1")).rejects.toMatchObject({ code: "ERR_UPSTREAM" });
  });

  it("unloads from vLLM once its metrics say that nothing of the adapter runs or waits any more", async () => {
    const line = (at: string, running: string, waiting = "") =>
      `vllm:lora_requests_info{max_lora="1",running_lora_adapters="${running}",waiting_lora_adapters="${waiting}"} ${at}\n`;
    // A line stays for each state that it has ever been in; the latest is the present.
    const before = line("1.7000000011e+09", "flight@1,flight@2");
    const { client, asked } = clientOf(
      new Response(before),
      new Response(`${before}${line("1.7000000020e+09", "flight@2", "flight@1")}`),
      new Response(`${line("1.7000000030e+09", "flight@2")}${before}`),
      new Response("ok"),
    );
    await client.unload("flight@1");
    expect(asked.map(({ path }) => path)).toEqual(["/metrics", "/metrics", "/metrics", "/v1/unload_lora_adapter"]);
  });

  it("proves a version by an answer under its own name", async () => {
    const answer = (model: string) => Response.json({ model, choices: [{ text: "a" }] });
    const { client, asked } = clientOf(
      answer("flight@3"),
      answer("flight@2"),
      refused(404, "model_not_found"),
      Response.json({}),
      new Response("<html>"),
    );
    await client.prove("flight@3");
    expect(asked[0]).toEqual({
      path: "/v1/completions",
      body: { model: "flight@3", prompt: "a", max_tokens: 1, temperature: 0 },
    });
    await expect(client.prove("flight@3")).rejects.toThrow("flight@3 was asked for and flight@2 answered");
    await expect(client.prove("flight@3")).rejects.toThrow("flight@3 does not answer at http://inference: 404");
    await expect(client.prove("flight@3")).rejects.toThrow("an answer of another form answered");
    await expect(client.prove("flight@3")).rejects.toThrow("an answer of another form answered");
  });

  it("says whether a server is healthy without ever failing, and lists its names", async () => {
    const { client } = clientOf(
      new Response(""),
      new Response("", { status: 503 }),
      new TypeError("refused"),
      models({ id: "base" }, { id: "flight@2", root: "/v/2", parent: "base" }),
      new Response("<html>"),
    );
    expect([await client.isHealthy(), await client.isHealthy(), await client.isHealthy()]).toEqual([
      true,
      false,
      false,
    ]);
    expect([...(await client.names())]).toEqual(["base", "flight@2"]);
    await expect(client.names()).rejects.toThrow("in another form");
  });
});
