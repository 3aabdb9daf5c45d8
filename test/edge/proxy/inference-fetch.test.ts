import { createServer, type RequestListener } from "node:http";
import { join } from "node:path";
import { describe, expect, it, onTestFinished } from "vitest";
import { newSigningKey, publicKeys, tokenVerifier, type KeySet } from "#shared/tokens.ts";
import { inferenceFetch } from "../../../edge/proxy/inference-fetch.ts";
import { startTestEdge } from "../../support/edge.ts";
import { record, startTestEndpoint } from "../../trainer/inference/endpoint.ts";
import { writeTinyAdapter, writeTinyModel } from "../../trainer/inference/tiny-model.ts";

/** Listens until the test is over. @returns its address */
async function listen(answer: RequestListener): Promise<string> {
  const server = createServer(answer);
  await new Promise<void>((resolve) => {
    server.listen(0, "127.0.0.1", resolve);
  });
  onTestFinished(() => void server.close());
  const address = server.address();
  return `http://127.0.0.1:${typeof address === "object" ? address?.port : ""}`;
}

const asked = { method: "POST", headers: { "content-type": "application/json" }, body: "{}" };

describe("inferenceFetch", () => {
  /** An inference that notes the keys which it is shown. */
  async function inference(): Promise<{ url: string; shown: (string | undefined)[] }> {
    const shown: (string | undefined)[] = [];
    const url = await listen(({ headers }, response) => {
      expect(headers["content-type"]).toBe("application/json");
      shown.push(headers.authorization);
      response.end("{}");
    });
    return { url, shown };
  }

  it("sends a token of scope inference and nothing else, signed once in ten minutes", async () => {
    const { url, shown } = await inference();
    const config = { signingKeys: { keys: [await newSigningKey()] }, inferenceKey: undefined, inferenceUrls: [url] };
    const start = Date.now();
    for (const at of [start, start + 599_000, start + 601_000]) await inferenceFetch({}, config, () => at)(url, asked);
    const [first = "", second, third = ""] = shown;
    expect(second).toBe(first);
    expect(third).not.toBe(first);
    for (const [key, at] of [
      [first, start],
      [third, start + 601_000],
    ] as const) {
      const [scheme, token = ""] = key.split(" ");
      expect(scheme).toBe("Bearer");
      const { scopes, tenantId, rollout } = await tokenVerifier(config.signingKeys)(token, at);
      expect({ scopes, tenantId, rollout }).toEqual({ scopes: ["inference"], tenantId: "edge", rollout: undefined });
    }
  });

  it("sends the key that was configured in its place", async () => {
    const { url, shown } = await inference();
    const config = { signingKeys: { keys: [] }, inferenceKey: "sk-static", inferenceUrls: [url] };
    await inferenceFetch({}, config, Date.now)(url, asked);
    expect(shown).toEqual(["Bearer sk-static"]);
  });
});

describe("an edge in front of an endpoint that wants its tokens", () => {
  it("is answered, and one without a token is not", async () => {
    const keySet: { keys: KeySet["keys"] } = { keys: [] };
    const jwks = await listen((_, response) => void response.end(JSON.stringify(publicKeys(keySet))));
    const endpoint = await startTestEndpoint(
      async (dir) => {
        const modelDir = join(dir, "model");
        await writeTinyModel(modelDir);
        await writeTinyAdapter(join(dir, "adapters", "flight", "0"), { name: "flight@0", modelDir });
      },
      { jwks },
    );
    const edge = await startTestEdge({ inferenceUrl: endpoint.url });
    onTestFinished(async () => {
      await edge.stop();
      await endpoint.close();
    });
    const question = { model: "flight", messages: [{ role: "user", content: "hello" }], max_tokens: 4 };
    const { token } = await edge.rollout();
    keySet.keys = edge.keys.keys;
    const answer = await edge.post("/v1/chat/completions", token, question);
    expect([answer.status, record(await answer.json())["choices"]]).toEqual([200, [expect.any(Object)]]);
    const direct = await endpoint.post("/v1/chat/completions", { ...question, model: "flight@0" });
    expect([direct.status, record(direct.body["error"])["code"]]).toEqual([401, "invalid_api_key"]);
    // A rollout's own token is for the edge: past it nothing would be recorded.
    const past = await fetch(`${endpoint.url}/v1/chat/completions`, {
      ...asked,
      headers: { authorization: `Bearer ${token}` },
      body: JSON.stringify({ ...question, model: "flight@0" }),
    });
    expect(past.status).toBe(403);
  }, 60_000);
});
