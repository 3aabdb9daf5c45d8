import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import type { RolloutDetail } from "#shared/wire.ts";
import { startTestEdge, type TestEdge } from "../../../support/edge.ts";
import { PROMPT_IDS } from "../../../support/mock-inference.ts";

let edge: TestEdge;
beforeAll(async () => {
  edge = await startTestEdge({ agents: { flight: { policy: "flight", tools: { calculator: 0.5 } } } });
});
afterAll(() => edge.stop());
beforeEach(() => {
  edge.inference.answer = () => ({ tokens: ["Hel", "lo"] });
  edge.inference.requests.length = 0;
});

async function onlyCall(id: string): Promise<RolloutDetail["calls"][number] | undefined> {
  const { calls } = await edge.admin.readRollout(id);
  expect(calls).toHaveLength(1);
  return calls[0];
}

const messages = { model: "claude-x", max_tokens: 64, messages: [{ role: "user", content: "hi" }] };
const responses = { model: "gpt-x", input: "hi" };

/** A request of each translated dialect, and what must be in its answer. */
const DIALECTS = [
  ["messages", messages, '"type":"message"', "event: message_stop"],
  ["responses", responses, '"object":"response"', "event: response.completed"],
] as const;

describe.each(DIALECTS)("%s of a policy", (dialect, body, whole, ending) => {
  const path = `/v1/${dialect}`;

  it.each([false, true])(
    "is recorded with ids and log-probabilities before its end is sent (streamed %s)",
    async (stream) => {
      const { id, token } = await edge.rollout();
      const response = await edge.post(path, token, { ...body, stream });
      expect(response.status).toBe(200);
      const text = await response.text();
      expect(text).toContain(stream ? ending : whole);
      expect(text).toContain("Hel");
      expect(text).not.toMatch(/token_ids|logprob":/);
      const call = await onlyCall(id);
      expect(call).toMatchObject({
        dialect,
        modelAsked: body.model,
        version: "flight@0",
        request: { ...body, stream },
        response: { role: "assistant", content: "Hello" },
        promptTokenIds: PROMPT_IDS,
        responseTokenIds: [100, 101],
        finishReason: "stop",
        trainable: true,
        error: null,
      });
      expect(text).toContain(call?.id.replace("ca_", ""));
      expect(edge.inference.requests).toMatchObject([{ model: "flight@0", top_p: 1, return_token_ids: true }]);
    },
  );

  it("without a token, with a bad body, or of a model that another answers fails in its own words", async () => {
    const refused = await edge.post(path, "nonsense", body);
    expect(refused.status).toBe(401);
    const { id, token } = await edge.rollout();
    const bad = await edge.post(path, token, "{");
    expect(bad.status).toBe(400);
    edge.inference.answer = () => ({ tokens: ["x"], model: "flight@7" });
    const wrong = await edge.post(path, token, body);
    expect(wrong.status).toBe(502);
    for (const [response, type, error] of [
      [refused, "authentication_error", "authentication_error"],
      [bad, "invalid_request_error", "invalid_request_error"],
      [wrong, "api_error", "server_error"],
    ] as const) {
      expect(await response.json()).toMatchObject(
        dialect === "messages"
          ? { type: "error", error: { type }, request_id: expect.any(String) as string }
          : { error: { type: error, message: expect.any(String) as string } },
      );
    }
    expect(await onlyCall(id)).toMatchObject({ httpStatus: 502, trainable: false });
  });

  it("that breaks in mid-stream tells so by an event and is recorded as far as it came", async () => {
    edge.inference.answer = () => ({ tokens: ["a", "b", "c", "d"], breakAfter: 3 });
    const { id, token } = await edge.rollout();
    const response = await edge.post(path, token, { ...body, stream: true });
    expect(response.status).toBe(200);
    const text = await response.text();
    expect(text.trimEnd().split("\n\n").at(-1)).toMatch(/^event: error\n/);
    expect(text).not.toContain(ending);
    expect(await onlyCall(id)).toMatchObject({
      httpStatus: 502,
      error: expect.stringContaining("stream broke") as string,
      response: { content: "ab" },
    });
  });

  it("whose client leaves stops the generation and is recorded", async () => {
    edge.inference.answer = () => ({ tokens: ["a", "b", "c", "d"], silentAfter: 3 });
    const { id, token } = await edge.rollout();
    const hungUp = edge.inference.nextHangUp();
    const leaving = new AbortController();
    const response = await fetch(`${edge.url}${path}`, {
      method: "POST",
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: JSON.stringify({ ...body, stream: true }),
      signal: leaving.signal,
    });
    await response.body?.getReader().read();
    leaving.abort();
    await hungUp;
    await expect.poll(async () => (await edge.admin.readRollout(id)).calls.length, { timeout: 10_000 }).toBe(1);
    expect(await onlyCall(id)).toMatchObject({ httpStatus: 499, error: "client_disconnected", trainable: false });
  });
});

describe("completions of a policy", () => {
  it("are asked of inference on its own path, for exactly the version", async () => {
    const { id, token } = await edge.rollout();
    // The mock answers chats on every path, so only what it was asked is of use here.
    const response = await edge.post("/v1/completions", token, { model: "gpt-x", prompt: [1, 2], max_tokens: 2 });
    expect(response.status).toBe(200);
    expect(await response.json()).toMatchObject({ object: "text_completion", model: "gpt-x" });
    expect(edge.inference.requests).toMatchObject([{ model: "flight@0", prompt: [1, 2], logprobs: 1 }]);
    expect(await onlyCall(id)).toMatchObject({
      dialect: "completions",
      error: "logprobs_incomplete",
      version: "flight@0",
    });
  });
});

describe("recorded requests of real clients", () => {
  it.each(["js-anthropic.jsonl", "js-anthropic-stream.jsonl"])(
    "%s are answered, and their tools rewarded",
    async (file) => {
      const lines = readFileSync(join(import.meta.dirname, "../../../wire", file), "utf8")
        .trim()
        .split("\n");
      expect(lines).toHaveLength(2);
      const { id, token } = await edge.rollout();
      for (const line of lines) {
        const { path, headers, body } = JSON.parse(line) as {
          path: string;
          headers: Record<string, string>;
          body: object;
        };
        const { authorization: _redacted, ...rest } = headers;
        const response = await fetch(`${edge.url}${path}`, {
          method: "POST",
          headers: { ...rest, "x-api-key": token },
          body: JSON.stringify(body),
        });
        expect(response.status).toBe(200);
        await response.text();
      }
      const { calls, rewards } = await edge.admin.readRollout(id);
      expect(calls).toMatchObject([{ trainable: true }, { trainable: true }]);
      expect(rewards).toMatchObject([{ source: "air", name: "calculator", value: 0.5 }]);
    },
  );
});

describe("models", () => {
  it("are listed in the form that the client reads", async () => {
    const { token } = await edge.rollout();
    const get = (path: string, headers: Record<string, string> = {}): Promise<Response> =>
      fetch(`${edge.url}${path}`, { headers: { authorization: `Bearer ${token}`, ...headers } });
    const anthropic = { "anthropic-version": "2026-10-21" };
    expect(await (await get("/v1/models")).json()).toMatchObject({
      object: "list",
      data: [
        { id: "flight", object: "model", owned_by: "fulgur" },
        { id: "flight@0", object: "model" },
      ],
    });
    expect(await (await get("/v1/models/flight@0")).json()).toMatchObject({ id: "flight@0", object: "model" });
    expect(await (await get("/v1/models", anthropic)).json()).toMatchObject({
      data: [
        { type: "model", id: "flight", display_name: "flight", created_at: expect.stringMatching(/Z$/) as string },
        {},
      ],
      has_more: false,
      first_id: "flight",
      last_id: "flight@0",
    });
    expect(await (await get("/v1/models/flight", anthropic)).json()).toMatchObject({ type: "model", id: "flight" });
    const missing = await get("/v1/models/nobody");
    expect([missing.status, await missing.json()]).toEqual([
      404,
      { error: expect.objectContaining({ code: "model_not_found" }) as unknown },
    ]);
    const missed = await get("/v1/models/nobody", anthropic);
    expect([missed.status, await missed.json()]).toEqual([
      404,
      expect.objectContaining({
        type: "error",
        error: expect.objectContaining({ type: "not_found_error" }) as unknown,
      }),
    ]);
  });
});
