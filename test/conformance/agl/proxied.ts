import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { aglClient, type AglClient, type AglTarget, type Answer, type Loose } from "./client.ts";
import { CHAT_ANSWER, startTestEndpoint, type TestEndpoint } from "./endpoint.ts";

export interface ProxiedTarget extends AglTarget {
  /** What a trainer registers and calls are then sent on as. */
  readonly model: string;
  /** What calls are answered with while they are paused: 503 by the published description, 429 by its server. */
  readonly pausedStatus: 429 | 503;
}

/** Agent Lightning's proxied calls, asked of any server that can reach this machine's loopback address. */
export function describeAglProxied(server: string, start: () => Promise<ProxiedTarget>): void {
  describe(`${server}: Agent Lightning's proxied calls`, () => {
    let agl: AglClient;
    let target: ProxiedTarget;
    let endpoint: TestEndpoint;
    let rollout: string;
    beforeAll(async () => {
      target = await start();
      agl = aglClient(target);
    });
    beforeEach(async () => {
      endpoint = await startTestEndpoint();
      await agl.must("DELETE", "/api/models");
      await agl.must("POST", "/proxy/resume");
      await agl.must("POST", "/api/models", [{ model: target.model, endpoint: endpoint.base, version: 4 }]);
      rollout = await agl.create();
    });
    afterEach(() => endpoint.stop());
    afterAll(async () => {
      await agl.must("DELETE", "/api/models");
      await agl.must("POST", "/proxy/resume");
    });

    const messages = [{ role: "user", content: "hi" }];
    const pathOf = (id: string, { mode = "train", attempt = "0", path = "chat/completions" } = {}): string =>
      `/proxy/rollout/${id}/attempt/${attempt}/mode/${mode}/openai/v1/${path}`;
    const call = (
      body: unknown = { model: "any", messages },
      options: Parameters<typeof pathOf>[1] = {},
    ): Promise<Answer> => agl.ask("POST", pathOf(rollout, options), { body });
    const events = (query = ""): Promise<Loose> => agl.must("GET", `/api/rollouts/${rollout}/events${query}`);

    test("a call in mode train is sent on with ids, log-probabilities and the trainer's temperature", async () => {
      const sent = {
        model: "gpt-4o",
        messages,
        temperature: 0.2,
        top_p: 0.9,
        tools: [{ type: "function" }],
        other: { a: 1 },
      };
      expect((await call(sent)).status).toBe(200);
      expect(endpoint.requests).toHaveLength(1);
      expect(endpoint.requests[0]?.path).toBe("/v1/chat/completions");
      expect(endpoint.requests[0]?.body).toEqual({
        ...sent,
        model: target.model,
        temperature: 1,
        return_token_ids: true,
        logprobs: true,
      });
      // The agent's key is none of the endpoint's business.
      expect(JSON.stringify(endpoint.requests[0]?.headers)).not.toContain(target.key);
    });

    test("a call in mode val is sent on with ids and the validation's temperature", async () => {
      expect((await call({ messages }, { mode: "val" })).status).toBe(200);
      expect(endpoint.requests[0]?.body).toEqual({
        messages,
        model: target.model,
        temperature: 0.7,
        return_token_ids: true,
      });
    });

    test("the agent gets the answer", async () => {
      const { status, body, headers } = await call();
      expect(status).toBe(200);
      expect(headers.get("content-type")).toContain("application/json");
      expect(body).toMatchObject({
        id: "chatcmpl-1",
        object: "chat.completion",
        choices: [{ index: 0, message: { role: "assistant", content: "Hello there" }, finish_reason: "stop" }],
        usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
      });
    });

    test("the call is an event of its attempt as soon as it is answered", async () => {
      await call({ model: "x", messages, max_tokens: 5 });
      const [event, ...more] = await events();
      expect(more).toEqual([]);
      expect(event).toEqual({
        event_type: "model_request",
        rollout_id: rollout,
        attempt_id: "0",
        timestamp: expect.any(Number),
        data: {
          model: target.model,
          model_version: 4,
          request: {
            model: target.model,
            messages,
            max_tokens: 5,
            temperature: 1,
            return_token_ids: true,
            logprobs: true,
          },
          response: expect.any(Object),
          server: { model: target.model, endpoint: endpoint.base, version: 4 },
          latency_ms: expect.any(Number),
          http_status: 200,
          status: "ok",
          retry_count: 0,
          routed_experts: null,
          usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
          finish_reason: "stop",
        },
      });
      expect(event.data.response).toMatchObject({
        object: "chat.completion",
        model: "served",
        prompt_token_ids: [1, 2, 3],
        choices: [
          {
            index: 0,
            message: { role: "assistant", content: "Hello there" },
            token_ids: [11, 12],
            finish_reason: "stop",
          },
        ],
      });
      expect((await agl.must("GET", `/api/rollouts/${rollout}`)).attempts).toEqual(["0"]);
    });

    test("the trainer reads it as a triplet, beside the reward", async () => {
      await call();
      await agl.must("POST", `/api/rollouts/${rollout}/attempt/0/events`, {
        event_type: "reward",
        data: { value: 0.5 },
      });
      expect((await events("?format=triplet")).map((event: Loose) => event.data)).toEqual([
        {
          prompt_token_ids: [1, 2, 3],
          response_token_ids: [11, 12],
          response_log_probs: [-0.5, -0.25],
          server: { model: target.model, version: 4 },
          http_status: 200,
          status: "ok",
        },
        { value: 0.5 },
      ]);
    });

    test("completions go the same way", async () => {
      const answer = await call({ prompt: "hi", max_tokens: 2 }, { path: "completions" });
      expect(answer).toMatchObject({
        status: 200,
        body: { object: "text_completion", choices: [{ text: "Hello there", finish_reason: "length" }] },
      });
      expect(endpoint.requests[0]?.path).toBe("/v1/completions");
      const [raw] = await events();
      expect(raw.data.response).toMatchObject({ object: "text_completion", choices: [{ text: "Hello there" }] });
      const [event] = await events("?format=triplet");
      expect(event.data).toMatchObject({
        prompt_token_ids: [1, 2, 3],
        response_token_ids: [11, 12],
        response_log_probs: [-0.5, -0.25],
      });
    });

    test("long prompts and many turns come back as they were sampled", async () => {
      const history = Array.from({ length: 300 }, (_, at) => at + 7);
      for (let turn = 1; turn <= 4; turn++) {
        endpoint.answer = () => ({
          body: {
            ...CHAT_ANSWER,
            prompt_token_ids: history.slice(0, 75 * turn),
            usage: { prompt_tokens: 75 * turn, completion_tokens: 2, total_tokens: 75 * turn + 2 },
          },
        });
        await call();
      }
      const read = await events("?format=triplet");
      expect(read.map((event: Loose) => event.data.prompt_token_ids)).toEqual(
        [1, 2, 3, 4].map((turn) => history.slice(0, 75 * turn)),
      );
    });

    test("an endpoint's refusal is the agent's to see, and an event that says so", async () => {
      const error = { message: "maximum context length is 32768" };
      endpoint.answer = () => ({ status: 400, body: { error } });
      expect(await call()).toMatchObject({ status: 400, body: { error } });
      expect(endpoint.requests).toHaveLength(1);
      const [event] = await events("?format=triplet");
      expect(event.data).toEqual({
        prompt_token_ids: [],
        response_token_ids: [],
        response_log_probs: null,
        server: { model: target.model, version: 4 },
        http_status: 400,
        status: "error",
        error,
      });
    });

    test.each([429, 503])("a %i is tried again, and the event says how often", async (status) => {
      endpoint.answer = () =>
        endpoint.requests.length === 1 ? { status, body: { error: { message: "busy" } } } : { body: CHAT_ANSWER };
      expect((await call()).status).toBe(200);
      expect(endpoint.requests).toHaveLength(2);
      expect(await events()).toMatchObject([{ data: { retry_count: 1, http_status: 200 } }]);
    });

    test("an endpoint that answers with the least still gives the agent an answer", async () => {
      endpoint.answer = () => ({ body: { choices: [{ message: { content: "ok" } }] } });
      const { status, body } = await call();
      expect(status).toBe(200);
      expect((body as Loose).choices[0].message.content).toBe("ok");
      const [event] = await events("?format=triplet");
      expect(event.data).toMatchObject({ response_token_ids: [], response_log_probs: null, http_status: 200 });
    });

    test("what is not a call is refused before anything is asked", async () => {
      expect((await call({}, { mode: "live" })).status).toBe(404);
      expect((await call({}, { path: "embeddings" })).status).toBe(404);
      expect((await agl.ask("POST", pathOf("nobody"), { body: { messages } })).status).toBe(404);
      for (const text of ["{", "[]", '"x"', "42", "null"]) {
        const refused = await agl.ask("POST", pathOf(rollout), { text });
        expect(refused.status).toBe(400);
        expect(refused.body).toHaveProperty("detail");
      }
      expect(endpoint.requests).toEqual([]);
      expect(await events()).toEqual([]);
    });

    test("without a registered model there is nothing to ask, until one is registered again", async () => {
      await agl.must("DELETE", "/api/models");
      expect(await call()).toMatchObject({ status: 503, body: { detail: expect.any(String) } });
      await agl.must("POST", "/api/models", [{ model: target.model, endpoint: endpoint.base, version: 5 }]);
      expect((await call()).status).toBe(200);
      expect(await events()).toMatchObject([{ data: { model_version: 5 } }]);
    });

    test("all calls of a rollout go to one endpoint, those of many to all", async () => {
      const second = await startTestEndpoint();
      try {
        await agl.must("POST", "/api/models", [{ model: target.model, endpoint: second.base }]);
        const created = await agl.must(
          "POST",
          "/api/rollouts",
          Array.from({ length: 12 }, () => ({ input: 1 })),
        );
        for (const { rollout_id } of created) {
          for (let time = 0; time < 2; time++) await agl.must("POST", pathOf(rollout_id), { messages });
          // Two more at one of them, none at the other.
          expect([endpoint.requests.length % 2, second.requests.length % 2]).toEqual([0, 0]);
        }
        expect(endpoint.requests.length + second.requests.length).toBe(24);
        expect(Math.min(endpoint.requests.length, second.requests.length)).toBeGreaterThan(0);
      } finally {
        await second.stop();
      }
    });

    test("a pause turns new calls away, lets those under way end, and counts them down", async () => {
      const release = Promise.withResolvers<void>();
      endpoint.answer = async () => {
        await release.promise;
        return { body: CHAT_ANSWER };
      };
      const under = call();
      await endpoint.came(1);
      const pause = { retry_after_seconds: 9, reason: "weights" };
      expect(await agl.must("POST", "/proxy/pause", pause)).toEqual({ paused: true, ...pause, inflight: 1 });
      const turnedAway = await call();
      expect(turnedAway.status).toBe(target.pausedStatus);
      expect(turnedAway.headers.get("retry-after")).toBe("9");
      expect(turnedAway.headers.get("x-agl-paused")).toBe("true");
      expect(turnedAway.body).toEqual({ error: "gateway paused", reason: "weights" });
      expect(endpoint.requests).toHaveLength(1);
      release.resolve();
      expect((await under).status).toBe(200);
      expect(await agl.must("GET", "/proxy/state")).toEqual({ paused: true, ...pause, inflight: 0 });
      // A call that was turned away is no event.
      expect(await events()).toHaveLength(1);
      await agl.must("POST", "/proxy/resume");
      expect((await call()).status).toBe(200);
      expect((await agl.must("GET", "/proxy/state")).inflight).toBe(0);
    });

    test("attempts are kept apart", async () => {
      await call(undefined, { attempt: "first" });
      await call(undefined, { attempt: "second" });
      expect(await events()).toEqual([]);
      expect((await agl.must("GET", `/api/rollouts/${rollout}`)).attempts).toEqual(["first", "second"]);
      await agl.must("PATCH", `/api/rollouts/${rollout}`, { status: { last_attempt_id: "second" } });
      expect(await events()).toMatchObject([{ attempt_id: "second" }]);
    });
  });
}
