import { asc, eq, inArray } from "drizzle-orm";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { calls, rewards, rollouts } from "#shared/tables.ts";
import { startTestEdge, type TestEdge } from "../../support/edge.ts";

/** Agents that start by themselves and call with a long-lived key. */
let edge: TestEdge;
let key: string;
let careful: string;
beforeAll(async () => {
  edge = await startTestEdge({
    agents: {
      flight: { policy: "flight", tools: { add: 0.5 }, live: { redact: [{ pattern: "SAS[0-9]+" }] } },
      careful: { policy: "flight", tools: { add: 0.5 }, live: { consent: "required" } },
    },
  });
  key = await newKey("flight");
  careful = await newKey("careful");
});
afterAll(() => edge.stop());
beforeEach(() => {
  edge.inference.answer = () => ({ tokens: ["Hel", "lo"] });
});

async function newKey(agent: string, scope = "agent"): Promise<string> {
  const response = await edge.post("/v1/keys", await edge.mint({ scopes: ["admin"] }), { scope, agent });
  expect(response.status).toBe(200);
  return ((await response.json()) as { key: string }).key;
}

function post(path: string, bearer: string, body: object, headers: Record<string, string> = {}): Promise<Response> {
  return fetch(`${edge.url}${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${bearer}`, "content-type": "application/json", ...headers },
    body: JSON.stringify(body),
  });
}

/** The calls with these ids, oldest first. */
function stored(ids: readonly (string | null)[]): Promise<(typeof calls.$inferSelect)[]> {
  return edge.store.db
    .select()
    .from(calls)
    .where(inArray(calls.id, ids.map(String)))
    .orderBy(asc(calls.createdAt), asc(calls.id));
}

const chat = { model: "any", messages: [{ role: "user", content: "hi" }] };

describe("a call with a long-lived key", () => {
  it("opens a live rollout by its session, and the next one joins it", async () => {
    const ids = [];
    for (const body of [chat, { ...chat, stream: true }]) {
      const response = await post("/v1/chat/completions", key, body, { "x-fulgur-session": "one" });
      expect(response.status).toBe(200);
      const text = await response.text();
      ids.push(/"id":"(ca_[0-9a-f]+)"/.exec(text)?.[1] ?? null);
    }
    const found = await stored(ids);
    expect(found).toHaveLength(2);
    expect(found[1]?.rolloutId).toBe(found[0]?.rolloutId);
    const [rollout] = await edge.store.db
      .select()
      .from(rollouts)
      .where(eq(rollouts.id, found[0]?.rolloutId ?? ""));
    expect(rollout).toMatchObject({ mode: "live", agent: "flight", sessionId: "one", status: "running" });
    const other = await post("/v1/chat/completions", key, chat, { "x-fulgur-session": "two" });
    const [call] = await stored([other.headers.get("x-fulgur-call")]);
    expect(call?.rolloutId).not.toBe(found[0]?.rolloutId);
  });

  it("without a session joins the one that issued its tool call or the response before it", async () => {
    edge.inference.answer = () => ({ tokens: ["x"], toolCalls: [{ id: "", name: "add", arguments: "{}" }] });
    const first = await post("/v1/responses", key, { model: "any", input: "Add." });
    const { id, output } = (await first.json()) as { id: string; output: { type: string; call_id: string }[] };
    const callId = output.find(({ type }) => type === "function_call")?.call_id;
    edge.inference.answer = () => ({ tokens: ["Done"] });
    const result = { type: "function_call_output", call_id: callId, output: "3" };
    const second = await post("/v1/responses", key, { model: "any", previous_response_id: id, input: [result] });
    expect(second.status).toBe(200);
    expect(edge.inference.requests.at(-1)?.["messages"]).toMatchObject([
      { role: "user", content: "Add." },
      { role: "assistant", tool_calls: [{ id: callId }] },
      { role: "tool", tool_call_id: callId, content: "3" },
    ]);
    const third = await post("/v1/messages", key, {
      model: "any",
      max_tokens: 9,
      messages: [
        { role: "user", content: "Add." },
        { role: "assistant", content: [{ type: "tool_use", id: callId, name: "add", input: {} }] },
        { role: "user", content: [{ type: "tool_result", tool_use_id: callId, content: "3" }] },
      ],
    });
    const found = await stored([first, second, third].map(({ headers }) => headers.get("x-fulgur-call")));
    expect(found).toHaveLength(3);
    expect(new Set(found.map(({ rolloutId }) => rolloutId)).size).toBe(1);
    // One signal, however often the result is seen.
    const signals = await edge.store.db
      .select()
      .from(rewards)
      .where(eq(rewards.rolloutId, found[0]?.rolloutId ?? ""));
    expect(signals).toMatchObject([{ source: "air", name: "add", value: 0.5 }]);
  });

  it("is redacted before it is stored, and then trains nothing", async () => {
    const asked = { ...chat, messages: [{ role: "user", content: "Book SAS12" }] };
    const response = await post("/v1/chat/completions", key, asked, { "x-fulgur-session": "secret" });
    expect(edge.inference.requests.at(-1)?.["messages"]).toEqual(asked.messages);
    const [call] = await stored([response.headers.get("x-fulgur-call")]);
    expect(call).toMatchObject({
      request: { messages: [{ role: "user", content: "Book [redacted]" }] },
      promptTokenIds: null,
      trainable: false,
      error: "redacted",
    });
  });

  it.each([false, true])(
    "without the consent that its agent wants is answered and not kept (streamed %s)",
    async (stream) => {
      const session = { "x-fulgur-session": `private-${stream}` };
      const refused = await post("/v1/chat/completions", careful, { ...chat, stream }, session);
      expect([refused.status, refused.headers.get("x-fulgur-record")]).toEqual([200, "unsampled"]);
      const id = /"id":"(ca_[0-9a-f]+)"/.exec(await refused.text())?.[1] ?? null;
      expect(await stored([id])).toMatchObject([
        { request: {}, response: null, promptTokenIds: null, trainable: false, completionTokens: 2 },
      ]);
      const consent = { ...session, "x-fulgur-consent": "granted" };
      const granted = await post("/v1/chat/completions", careful, { ...chat, stream }, consent);
      expect(granted.headers.get("x-fulgur-record")).toBeNull();
      const kept = /"id":"(ca_[0-9a-f]+)"/.exec(await granted.text())?.[1] ?? null;
      expect(await stored([kept])).toMatchObject([{ response: { content: "Hello" }, trainable: true }]);
    },
  );

  it("that may only read is refused", async () => {
    const response = await post("/v1/chat/completions", await newKey("flight", "read"), chat);
    expect(response.status).toBe(403);
    expect(await response.text()).toContain("scope agent");
  });
});
