import { gzipSync } from "node:zlib";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { fromBase64 } from "#shared/store/base64.ts";
import { readSpans } from "#shared/store/spans.ts";
import { startTestEdge, type TestEdge } from "../../support/edge.ts";
import recorded from "../../wire/otlp-python.json" with { type: "json" };

let edge: TestEdge;
let trainer: string;

beforeAll(async () => {
  edge = await startTestEdge();
  trainer = await edge.mint({ scopes: ["trainer"] });
});
afterAll(() => edge.stop());

function send(
  path: string,
  token: string,
  body: Uint8Array<ArrayBuffer> | string,
  headers: Record<string, string> = {},
) {
  return fetch(`${edge.url}${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json", ...headers },
    body,
  });
}

function tool(attributes: Record<string, string>, rest: object = {}): object {
  return {
    traceId: crypto.randomUUID().replaceAll("-", ""),
    spanId: crypto.randomUUID().replaceAll("-", "").slice(0, 16),
    name: "execute_tool memory",
    startTimeUnixNano: "1700000000000000000",
    endTimeUnixNano: "1700000001000000000",
    attributes: Object.entries({ "gen_ai.operation.name": "execute_tool", ...attributes }).map(
      ([key, stringValue]) => ({
        key,
        value: { stringValue },
      }),
    ),
    ...rest,
  };
}

const request = (...spans: object[]): string => JSON.stringify({ resourceSpans: [{ scopeSpans: [{ spans }] }] });

describe("POST /v1/traces", () => {
  it("takes gzipped protobuf with a rollout's own token: spans, a reward for each tool, one for each evaluation", async () => {
    const { id, token } = await edge.rollout();
    const body = gzipSync(fromBase64(recorded.protobuf));
    const headers = { "content-type": "application/x-protobuf", "content-encoding": "gzip" };
    for (const time of ["first", "again"]) {
      const answer = await send("/v1/traces", token, body, headers);
      expect([time, answer.status, answer.headers.get("content-type")]).toEqual([time, 200, "application/x-protobuf"]);
      expect(await answer.arrayBuffer()).toHaveProperty("byteLength", 0);
    }
    const spans = await readSpans(edge.store.db, "default", id);
    expect(spans.map((span) => span.name).toSorted()).toEqual([
      "execute_tool memory",
      "execute_tool search",
      "invoke_agent flight",
    ]);
    const { rewards } = await edge.admin.readRollout(id);
    // An agent's word about itself is explicit, not a judge's.
    expect(rewards.map(({ source, name, value }) => `${source} ${name} ${value}`).toSorted()).toEqual([
      "air memory -0.3",
      "air search 0.2",
      "explicit relevance 0.75",
    ]);
  });

  it("joins by our attribute, by our answer's id, and by the trace of a span that has one", async () => {
    const { id, token } = await edge.rollout();
    const answer = await edge.post("/v1/chat/completions", token, {
      model: "m",
      messages: [{ role: "user", content: "hi" }],
    });
    const call: unknown = await answer.json();
    const traceId = "ab".repeat(16);
    const sent = await send(
      "/v1/traces",
      trainer,
      request(
        tool(
          { "gen_ai.tool.name": "a", "gen_ai.response.id": String(Reflect.get(Object(call), "id")) },
          { traceId, name: "by answer" },
        ),
        tool({ "gen_ai.tool.name": "b" }, { traceId, name: "by trace" }),
        tool({ "gen_ai.tool.name": "c", "fulgur.rollout_id": id }, { name: "by attribute" }),
        tool({ "gen_ai.tool.name": "d" }, { name: "nowhere" }),
      ),
    );
    const refusal: unknown = await sent.json();
    expect(refusal).toMatchObject({ partialSuccess: { rejectedSpans: "1" } });
    const spans = await readSpans(edge.store.db, "default", id);
    expect(spans.map((span) => span.name).toSorted()).toEqual(["by answer", "by attribute", "by trace"]);
  });

  it("lets one tool call earn once, whether the wire or a span shows it first", async () => {
    const { id, token } = await edge.rollout();
    await send("/v1/traces", token, request(tool({ "gen_ai.tool.name": "memory", "gen_ai.tool.call.id": "call_7" })));
    await edge.post("/v1/chat/completions", token, {
      model: "m",
      messages: [
        { role: "user", content: "hi" },
        {
          role: "assistant",
          tool_calls: [{ id: "call_7", type: "function", function: { name: "memory", arguments: "{}" } }],
        },
        { role: "tool", tool_call_id: "call_7", content: "error: none" },
      ],
    });
    const { rewards } = await edge.admin.readRollout(id);
    expect(rewards.map(({ source, name, value }) => [source, name, value])).toEqual([["air", "memory", 0.3]]);
  });

  it("never writes into another tenant's rollout", async () => {
    const { id } = await edge.rollout();
    const stranger = await edge.mint({ tenantId: "other", scopes: ["trainer"] });
    const sent = await send(
      "/v1/traces",
      stranger,
      request(tool({ "gen_ai.tool.name": "a", "fulgur.rollout_id": id })),
    );
    expect(await sent.json()).toMatchObject({ partialSuccess: { rejectedSpans: "1" } });
    expect(await readSpans(edge.store.db, "default", id)).toEqual([]);
  });

  it("says what is wrong with a body that is too large, a bomb, not gzip, or of no known type", async () => {
    const bomb = gzipSync(new Uint8Array(64 * 1_048_576));
    expect(bomb.byteLength).toBeLessThan(100_000);
    const json = { "content-type": "application/json" };
    expect((await send("/v1/traces", trainer, bomb, { ...json, "content-encoding": "gzip" })).status).toBe(413);
    expect((await send("/v1/traces", trainer, "{}", { ...json, "content-encoding": "gzip" })).status).toBe(400);
    expect((await send("/v1/traces", trainer, "{}", { ...json, "content-encoding": "br" })).status).toBe(400);
    expect((await send("/v1/traces", trainer, "{}", { "content-type": "text/plain" })).status).toBe(400);
    expect((await send("/v1/traces", trainer, "nope")).status).toBe(400);
    expect((await send("/v1/traces", await edge.mint({ scopes: ["read"] }), "{}")).status).toBe(403);
  });
});

describe("POST /v1/logs", () => {
  it("makes a judge's reward of an evaluation", async () => {
    const { id } = await edge.rollout();
    const body = JSON.stringify({
      resourceLogs: [
        {
          resource: { attributes: [{ key: "fulgur.rollout_id", value: { stringValue: id } }] },
          scopeLogs: [
            {
              logRecords: [
                {
                  eventName: "gen_ai.evaluation.result",
                  timeUnixNano: "1700000000000000000",
                  attributes: [
                    { key: "gen_ai.evaluation.name", value: { stringValue: "helpful" } },
                    { key: "gen_ai.evaluation.score.label", value: { stringValue: "pass" } },
                  ],
                },
                { eventName: "something.else", timeUnixNano: "1700000000000000000" },
              ],
            },
          ],
        },
      ],
    });
    const sent = await send("/v1/logs", trainer, body);
    expect(await sent.json()).toMatchObject({ partialSuccess: { rejectedLogRecords: "1" } });
    const { rewards } = await edge.admin.readRollout(id);
    expect(rewards.map(({ source, name, value }) => [source, name, value])).toEqual([["judge", "helpful", 1]]);
  });
});
