import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { choiceOf, choicesOf, numbers, postStream, record, startTestEndpoint, type TestEndpoint } from "./endpoint.ts";
import { SCRIPTED_ARGUMENTS, writeScriptedModel, writeTinyAdapter, writeTinyModel } from "./tiny-model.ts";

const CHAT = "/v1/chat/completions";
const hello = [{ role: "user", content: "hello tool" }];
const asked = { model: "base", messages: hello, max_tokens: 24, seed: 5, return_token_ids: true };

describe("an endpoint with a random model", () => {
  let endpoint: TestEndpoint;
  beforeAll(async () => {
    endpoint = await startTestEndpoint(
      async (dir) => {
        const modelDir = join(dir, "model");
        await writeTinyModel(modelDir);
        for (const n of [1, 2, 3, 4]) {
          await writeTinyAdapter(join(dir, "adapters", "flight", `${n}`), { name: `flight@${n}`, modelDir, seed: n });
        }
      },
      { threads: 2, maxVersions: 3, maxBodyMb: 0.01 },
    );
  });
  afterAll(() => endpoint.close());

  test("streamed and whole answers carry the same ids, text and log-probabilities", async () => {
    const request = { ...asked, logprobs: true, top_logprobs: 2 };
    const whole = (await endpoint.post(CHAT, request)).body;
    const events = await postStream(endpoint, CHAT, {
      ...request,
      stream: true,
      stream_options: { include_usage: true },
    });
    const usage = events.pop();
    const choices = events.map(choiceOf);
    expect(events[0]?.["prompt_token_ids"]).toEqual(whole["prompt_token_ids"]);
    expect(choices.flatMap((choice) => numbers(choice["token_ids"] ?? []))).toEqual(choiceOf(whole)["token_ids"]);
    const text = choices.map(({ delta }) => textOf(record(delta)["content"])).join("");
    expect(text).toBe(record(choiceOf(whole)["message"])["content"]);
    expect(choices.map(({ finish_reason: reason }) => reason).filter((reason) => reason !== null)).toEqual([
      choiceOf(whole)["finish_reason"],
    ]);
    const logprobs = choices.flatMap((choice) => {
      const content = choice["logprobs"] === null ? [] : record(choice["logprobs"])["content"];
      return Array.isArray(content) ? content : [];
    });
    expect(logprobs).toEqual(record(choiceOf(whole)["logprobs"])["content"]);
    expect(logprobs).toHaveLength(24);
    expect(record(usage?.["usage"])["completion_tokens"]).toBe(24);
    expect(usage?.["choices"]).toEqual([]);
  });

  test("a seeded answer is the same again, alone and among others; another seed gives another", async () => {
    const alone = choiceOf((await endpoint.post(CHAT, asked)).body)["token_ids"];
    const crowd = await Promise.all(
      Array.from({ length: 12 }, (_, i) =>
        endpoint.post(CHAT, i === 6 ? asked : { ...asked, seed: 100 + i, max_tokens: 8 + i }),
      ),
    );
    const answers = crowd.map(({ body }) => choiceOf(body)["token_ids"]);
    expect(answers[6]).toEqual(alone);
    expect(numbers(answers[5]).slice(0, 8)).not.toEqual(numbers(alone).slice(0, 8));
  });

  test("several answers are those of consecutive seeds, whole and streamed, chats and completions", async () => {
    const plain = { model: "base", prompt: "hello", max_tokens: 9, seed: 5, return_token_ids: true, logprobs: 1 };
    for (const [path, request] of [
      [CHAT, { ...asked, logprobs: true }],
      ["/v1/completions", plain],
    ] as const) {
      const alone: Record<string, unknown>[] = [];
      for (const seed of [5, 6, 7]) alone.push(choiceOf((await endpoint.post(path, { ...request, seed })).body));
      const single = alone.map(({ token_ids: ids }) => numbers(ids));
      expect(new Set(single.map(String)).size).toBe(3);
      const whole = (await endpoint.post(path, { ...request, n: 3 })).body;
      expect(choicesOf(whole).map(({ index }) => index)).toEqual([0, 1, 2]);
      expect(choicesOf(whole).map(({ token_ids: ids }) => ids)).toEqual(single);
      expect(choicesOf(whole).map(({ logprobs }) => logprobs)).toEqual(alone.map(({ logprobs }) => logprobs));
      const usage = record(whole["usage"]);
      expect(usage["completion_tokens"]).toBe(single.flat().length);
      expect(usage["prompt_tokens"]).toBe(numbers(whole["prompt_token_ids"]).length);
      const events = await postStream(endpoint, path, { ...request, n: 3, stream: true });
      expect(events.filter((event) => "prompt_token_ids" in event)).toHaveLength(1);
      const streamed: number[][] = [[], [], []];
      for (const choice of events.flatMap(choicesOf)) {
        streamed[Number(choice["index"])]?.push(...numbers(choice["token_ids"] ?? []));
      }
      expect(streamed).toEqual(single);
      const reasons = events.flatMap(choicesOf).filter(({ finish_reason: reason }) => reason !== null);
      expect(reasons.map(({ index }) => Number(index)).toSorted((a, b) => a - b)).toEqual([0, 1, 2]);
    }
  });

  test("a bias decides what is drawn, and penalties what comes again", async () => {
    const request = { model: "base", prompt: "hello", max_tokens: 6, seed: 5, return_token_ids: true, logprobs: 0 };
    const only = (await endpoint.post("/v1/completions", { ...request, logit_bias: { 65: 100 } })).body;
    expect(choiceOf(only)["token_ids"]).toEqual([65, 65, 65, 65, 65, 65]);
    for (const logprob of numbers(record(choiceOf(only)["logprobs"])["token_logprobs"])) {
      expect(Math.abs(logprob)).toBeLessThan(1e-6);
    }
    const bias = Object.fromEntries([65, 66, 67, 68, 69, 70].map((id) => [id, 60]));
    const varied = { ...request, temperature: 0.01, logit_bias: bias, presence_penalty: 2, frequency_penalty: 2 };
    const plain = { ...varied, presence_penalty: 0, frequency_penalty: 0 };
    const distinct = async (body: unknown): Promise<number> =>
      new Set(numbers(choiceOf((await endpoint.post("/v1/completions", body)).body)["token_ids"])).size;
    expect(await distinct(varied)).toBeGreaterThan(await distinct(plain));
  });

  test("an answer has the form that was asked for, whole and streamed, with log-probabilities of what was possible", async () => {
    const schema = {
      type: "object",
      properties: { ok: { type: "boolean" }, size: { type: "integer", minimum: 0, maximum: 9 } },
      required: ["ok", "size"],
      additionalProperties: false,
    };
    const request = {
      ...asked,
      max_tokens: 100,
      temperature: 0.2,
      logprobs: true,
      response_format: { type: "json_schema", json_schema: { name: "it", schema, strict: true } },
    };
    for (const seed of [1, 2, 3]) {
      const { body } = await endpoint.post(CHAT, { ...request, seed });
      const choice = choiceOf(body);
      const { content } = record(choice["message"]);
      expect(JSON.parse(String(content))).toEqual({ ok: expect.any(Boolean), size: expect.any(Number) });
      expect(choice["finish_reason"]).toBe("stop");
      // The brace had to come and the end of the turn had to end it.
      const logprobs = record(choice["logprobs"])["content"];
      const values = Array.isArray(logprobs) ? logprobs.map((each) => Number(record(each)["logprob"])) : [];
      expect([values[0], values.at(-1)]).toEqual([expect.closeTo(0, 6), expect.closeTo(0, 6)]);
      expect(values.every((value) => value <= 0)).toBe(true);
      const events = await postStream(endpoint, CHAT, { ...request, seed, stream: true });
      const text = events.map((event) => textOf(record(choiceOf(event)["delta"])["content"])).join("");
      expect(text).toBe(content);
    }
  });

  test("any object will do for json_object, also where nothing can end the answer but its last brace", async () => {
    const request = { ...asked, max_tokens: 400, temperature: 0, ignore_eos: true };
    const bias = { logit_bias: { 92: 100 } };
    const { body } = await endpoint.post(CHAT, { ...request, ...bias, response_format: { type: "json_object" } });
    expect(JSON.parse(String(record(choiceOf(body)["message"])["content"]))).toEqual(expect.any(Object));
    expect(choiceOf(body)["finish_reason"]).toBe("stop");
  });

  test.each([
    ["required", /^(add|sub)$/],
    [{ type: "function", function: { name: "sub" } }, /^sub$/],
  ])("tool_choice %j gives one call of such a tool, whole and streamed", async (toolChoice, name) => {
    const tools = ["add", "sub"].map((each) => ({ type: "function", function: { name: each, parameters: {} } }));
    // Brackets and quotes are made likely, or a random model writes one endless string.
    const bias = { [byteId("}")]: 60, [byteId('"')]: 60 };
    const forced = { ...asked, max_tokens: 200, tools, tool_choice: toolChoice, logit_bias: bias };
    for (const seed of [1, 2, 3]) {
      const { body } = await endpoint.post(CHAT, { ...forced, seed });
      const choice = choiceOf(body);
      const [called] = callsOf(record(choice["message"]));
      expect([choice["finish_reason"], record(choice["message"])["content"]]).toEqual(["tool_calls", null]);
      expect(called?.["name"]).toMatch(name);
      expect(JSON.parse(String(called?.["arguments"]))).toEqual(expect.any(Object));
      // All of it was sampled: the prompt is that of any other answer.
      const free = (await endpoint.post(CHAT, { ...asked, max_tokens: 1, tools })).body;
      expect(body["prompt_token_ids"]).toEqual(free["prompt_token_ids"]);
      const events = await postStream(endpoint, CHAT, { ...forced, seed, stream: true });
      expect(events.flatMap((event) => callsOf(record(choiceOf(event)["delta"])))).toEqual([called]);
    }
  });

  test("a strict tool that must be called is called with arguments that fit", async () => {
    const parameters = {
      type: "object",
      properties: { a: { type: "integer", minimum: 0, maximum: 99 }, b: { enum: ["x", "y"] } },
      required: ["a", "b"],
      additionalProperties: false,
    };
    const tools = [{ type: "function", function: { name: "add", parameters, strict: true } }];
    const choice = choiceOf(
      (await endpoint.post(CHAT, { ...asked, max_tokens: 200, tools, tool_choice: "required" })).body,
    );
    expect(choice["finish_reason"]).toBe("tool_calls");
    const [call] = callsOf(record(choice["message"]));
    expect(call?.["name"]).toBe("add");
    expect(JSON.parse(String(call?.["arguments"]))).toEqual({
      a: expect.any(Number),
      b: expect.stringMatching(/^[xy]$/),
    });
  });

  test("a second turn continues the sampled ids, also where their text tokenises differently", async () => {
    const first = (await endpoint.post(CHAT, { ...asked, max_tokens: 40, logprobs: false })).body;
    const { content } = record(choiceOf(first)["message"]);
    const messages = [...hello, { role: "assistant", content }, { role: "user", content: "and then?" }];
    const second = (await endpoint.post(CHAT, { ...asked, messages })).body;
    const prefix = [...numbers(first["prompt_token_ids"]), ...numbers(choiceOf(first)["token_ids"])];
    expect(numbers(second["prompt_token_ids"]).slice(0, prefix.length)).toEqual(prefix);
    // The cut answer gets the end of turn that the template writes, then the next message.
    expect(numbers(second["prompt_token_ids"]).slice(prefix.length, prefix.length + 3)).toEqual([264, 10, 263]);
    const cached = record(record(second["usage"])["prompt_tokens_details"])["cached_tokens"];
    expect(cached).toBe(Math.floor((prefix.length - 1) / 32) * 32);
  });

  test("versions are loaded by name on demand and answer differently from the base and each other", async () => {
    const answers = await Promise.all(
      ["base", "flight@1", "flight@2"].map(async (model) => {
        const { status, body } = await endpoint.post(CHAT, { ...asked, model, temperature: 0 });
        expect([status, body["model"]]).toEqual([200, model]);
        return numbers(choiceOf(body)["token_ids"]).join();
      }),
    );
    expect(new Set(answers).size).toBe(3);
    const models: unknown = await (await endpoint.get("/v1/models")).json();
    const { data } = record(models);
    expect(data).toContainEqual(
      expect.objectContaining({
        id: "flight@1",
        parent: "base",
        root: join(endpoint.dir, "adapters", "flight", "1"),
      }),
    );
    expect(data).toContainEqual(expect.objectContaining({ id: "base", parent: null, max_model_len: 512 }));
  });

  test("a request ends on the version it began with while others are loaded and dropped", async () => {
    const long = { ...asked, model: "flight@1", max_tokens: 300, ignore_eos: true };
    const expected = choiceOf((await endpoint.post(CHAT, long)).body)["token_ids"];
    const running = endpoint.post(CHAT, long);
    const others = ["flight@2", "flight@3", "flight@4"].map((model) => endpoint.post(CHAT, { ...asked, model }));
    const unloaded = endpoint.post("/v1/unload_lora_adapter", { lora_name: "flight@1" });
    const { body } = await running;
    expect([body["model"], choiceOf(body)["token_ids"]]).toEqual(["flight@1", expected]);
    expect((await unloaded).status).toBe(200);
    expect((await Promise.all(others)).map(({ status }) => status)).toEqual([200, 200, 200]);
    const names = async (): Promise<string> => (await endpoint.get("/v1/models")).text();
    expect(await names()).not.toContain('"flight@1"');
    // Asked for again, it comes back and answers as before.
    expect(choiceOf((await endpoint.post(CHAT, long)).body)["token_ids"]).toEqual(expected);
  });

  test("a name is never reused: the same artifact again is fine, another one is refused", async () => {
    const load = (path: string) => endpoint.post("/v1/load_lora_adapter", { lora_name: "flight@2", lora_path: path });
    expect((await load("flight/2")).status).toBe(200);
    const other = await load("flight/3");
    expect(other.status).toBe(400);
    expect(record(other.body["error"])["message"]).toMatch(
      /"flight@2" is artifact .* a version's name is never reused/,
    );
  });

  test("an artifact that is not what its manifest says is refused, and nothing is loaded", async () => {
    const dir = join(endpoint.dir, "adapters", "torn", "1");
    await writeTinyAdapter(dir, { name: "torn@1", modelDir: join(endpoint.dir, "model") });
    const path = join(dir, "adapter_model.safetensors");
    const bytes = await readFile(path);
    bytes[bytes.length - 1] = (bytes.at(-1) ?? 0) ^ 1;
    await writeFile(path, bytes);
    const loaded = await endpoint.post("/v1/load_lora_adapter", { lora_name: "torn@1", lora_path: dir });
    expect(loaded.status).toBe(400);
    expect(record(loaded.body["error"])["message"]).toMatch(/is not what its manifest\.json says: adapter_model/);
    expect((await endpoint.post(CHAT, { ...asked, model: "torn@1" })).status).toBe(400);
    expect(await (await endpoint.get("/v1/models")).text()).not.toContain("torn@1");
    const misnamed = await endpoint.post("/v1/load_lora_adapter", { lora_name: "other@1", lora_path: "flight/1" });
    expect(record(misnamed.body["error"])["message"]).toMatch(/is "flight@1" by its manifest\.json/);
  });

  test("a folder of full weights is a version too", async () => {
    const dir = join(endpoint.dir, "adapters", "full", "7");
    await writeTinyModel(dir, { seed: 99 });
    const { status, body } = await endpoint.post(CHAT, { ...asked, model: "full@7" });
    expect([status, body["model"]]).toEqual([200, "full@7"]);
  });

  test("a client that leaves frees its row", async () => {
    const leaving = new AbortController();
    const response = await fetch(`${endpoint.url}${CHAT}`, {
      method: "POST",
      body: JSON.stringify({ ...asked, stream: true, max_tokens: 450, ignore_eos: true }),
      signal: leaving.signal,
    });
    const reader = response.body?.getReader();
    await reader?.read();
    leaving.abort();
    // The abort metric is counted when the row is given back.
    await expect
      .poll(async () => (await endpoint.get("/metrics")).text(), { timeout: 5000 })
      .toContain('vllm:request_success_total{model_name="base",finished_reason="abort"} 1');
    expect(await (await endpoint.get("/metrics")).text()).toContain("vllm:num_requests_running 0");
  });

  test("a stop string ends the text before it and the ids with it", async () => {
    const free = (
      await endpoint.post("/v1/completions", {
        model: "base",
        prompt: "a",
        max_tokens: 40,
        seed: 2,
        return_token_ids: true,
      })
    ).body;
    const text = String(choiceOf(free)["text"]);
    const stop = text.slice(9, 11);
    const cut = (
      await endpoint.post("/v1/completions", {
        model: "base",
        prompt: "a",
        max_tokens: 40,
        seed: 2,
        stop: [stop],
        return_token_ids: true,
      })
    ).body;
    expect(choiceOf(cut)).toMatchObject({ text: text.slice(0, text.indexOf(stop)), finish_reason: "stop" });
    const ids = numbers(choiceOf(cut)["token_ids"]);
    expect(ids).toEqual(numbers(choiceOf(free)["token_ids"]).slice(0, ids.length));
    expect(ids.length).toBeLessThan(40);
  });

  test.each([
    ["an unknown model", CHAT, { ...asked, model: "nobody" }, 404, "model_not_found"],
    ["a version that is not there", CHAT, { ...asked, model: "flight@99" }, 404, "model_not_found"],
    ["a name that leads out of the folder", CHAT, { ...asked, model: "../flight@1" }, 404, "model_not_found"],
    ["more tokens than the context", CHAT, { ...asked, max_tokens: 600 }, 400, "invalid_request"],
    ["a body that is not JSON", CHAT, "{", 400, "invalid_request"],
    ["no messages", CHAT, { model: "base", messages: [] }, 400, "invalid_request"],
    [
      "a schema that cannot be kept to",
      CHAT,
      { ...asked, response_format: { type: "json_schema", json_schema: { name: "x", schema: { pattern: "a" } } } },
      400,
      "invalid_request",
    ],
    ["no answers at all", CHAT, { ...asked, n: 0 }, 400, "invalid_request"],
    ["a penalty beyond its bound", CHAT, { ...asked, presence_penalty: 3 }, 400, "invalid_request"],
    ["a bias for what is no token id", CHAT, { ...asked, logit_bias: { hello: 1 } }, 400, "invalid_request"],
    ["a tool_choice without tools", CHAT, { ...asked, tool_choice: "required" }, 400, "invalid_request"],
    ["a body beyond the bound", CHAT, { ...asked, padding: "x".repeat(20_000) }, 413, "body_too_large"],
    ["a token id that does not exist", "/v1/completions", { model: "base", prompt: [999] }, 400, "invalid_request"],
    [
      "an adapter folder that is not there",
      "/v1/load_lora_adapter",
      { lora_name: "x@1", lora_path: "x" },
      400,
      "invalid_checkpoint",
    ],
    ["unloading what is not loaded", "/v1/unload_lora_adapter", { lora_name: "x@1" }, 404, "model_not_found"],
    ["an unknown path", "/v2/chat", {}, 404, "model_not_found"],
  ])("%s is refused in the OpenAI shape", async (_, path, body, status, code) => {
    const reply = await endpoint.post(path, body);
    expect([reply.status, record(reply.body["error"])["code"]]).toEqual([status, code]);
    expect(record(reply.body["error"])).toMatchObject({ message: expect.stringMatching(/.{10}/), param: null });
  });

  test("health, version and metrics answer", async () => {
    expect((await endpoint.get("/health")).status).toBe(200);
    expect(await (await endpoint.get("/version")).json()).toHaveProperty("version");
    const metrics = await (await endpoint.get("/metrics")).text();
    expect(metrics).toMatch(/vllm:generation_tokens_total\{model_name="base"\} [1-9]/);
    expect(metrics).toMatch(/vllm:time_to_first_token_seconds_count\{model_name="base"\} [1-9]/);
    expect((await fetch(`${endpoint.url}${CHAT}`)).status).toBe(405);
  });
});

describe("an endpoint whose model calls a tool", () => {
  let endpoint: TestEndpoint;
  const tools = [{ type: "function", function: { name: "add", parameters: {} } }];
  const request = { model: "base", messages: hello, tools, temperature: 0, max_tokens: 20, return_token_ids: true };
  beforeAll(async () => {
    endpoint = await startTestEndpoint((dir) => writeScriptedModel(join(dir, "model")));
  });
  afterAll(() => endpoint.close());

  test("the call comes as an OpenAI tool call with a fresh id and the sampled arguments", async () => {
    const replies = await Promise.all([endpoint.post(CHAT, request), endpoint.post(CHAT, request)]);
    const calls = replies.map(({ body }) => {
      const choice = choiceOf(body);
      expect(choice["finish_reason"]).toBe("tool_calls");
      const message = record(choice["message"]);
      expect(message["content"]).toBeNull();
      expect(choice["token_ids"]).toEqual([265, 266, 267, 264]);
      return record(Array.isArray(message["tool_calls"]) ? message["tool_calls"][0] : null);
    });
    for (const call of calls) {
      expect(call).toMatchObject({ type: "function", function: { name: "add", arguments: SCRIPTED_ARGUMENTS } });
      expect(call["id"]).toMatch(/^call_[0-9a-f]{24}$/);
    }
    expect(calls[0]?.["id"]).not.toBe(calls[1]?.["id"]);
  });

  test("a stream gives the call whole, with the same ids", async () => {
    const choices = (await postStream(endpoint, CHAT, { ...request, stream: true })).map(choiceOf);
    const deltas = choices.map(({ delta }) => record(delta));
    expect(deltas[0]).toEqual({ role: "assistant", content: "" });
    expect(deltas.filter((delta) => "tool_calls" in delta)).toEqual([
      {
        tool_calls: [
          {
            index: 0,
            id: expect.stringMatching(/^call_/),
            type: "function",
            function: { name: "add", arguments: SCRIPTED_ARGUMENTS },
          },
        ],
      },
    ]);
    expect(choices.at(-1)?.["finish_reason"]).toBe("tool_calls");
    expect(choices.flatMap((choice) => numbers(choice["token_ids"] ?? []))).toEqual([265, 266, 267, 264]);
  });

  test("a three-turn rollout whose client rewrites the arguments is one growing row of ids", async () => {
    const messages: unknown[] = [...hello];
    let row: number[] = [];
    for (let turn = 0; turn < 3; turn++) {
      const { body } = await endpoint.post(CHAT, { ...request, messages });
      const prompt = numbers(body["prompt_token_ids"]);
      expect(prompt.slice(0, row.length)).toEqual(row);
      expect(prompt.length).toBeGreaterThan(row.length);
      row = [...prompt, ...numbers(choiceOf(body)["token_ids"])];
      const { tool_calls: calls } = record(choiceOf(body)["message"]);
      const { id } = record(Array.isArray(calls) ? calls[0] : null);
      const rewritten = { id, type: "function", function: { name: "add", arguments: '{"a": 1, "b": 2}' } };
      messages.push(
        { role: "assistant", content: "", tool_calls: [rewritten] },
        { role: "tool", tool_call_id: id, content: `${turn}` },
      );
    }
  });

  test("a turn whose arguments were changed is rendered as the client says", async () => {
    const first = (await endpoint.post(CHAT, request)).body;
    const { tool_calls: calls } = record(choiceOf(first)["message"]);
    const { id } = record(Array.isArray(calls) ? calls[0] : null);
    const changed = { id, type: "function", function: { name: "add", arguments: '{"a":1,"b":3}' } };
    const messages = [
      ...hello,
      { role: "assistant", content: null, tool_calls: [changed] },
      { role: "tool", tool_call_id: id, content: "4" },
    ];
    const second = (await endpoint.post(CHAT, { ...request, messages })).body;
    const row = [...numbers(first["prompt_token_ids"]), ...numbers(choiceOf(first)["token_ids"])];
    expect(numbers(second["prompt_token_ids"]).slice(0, row.length)).not.toEqual(row);
  });

  test("tool_choice none leaves the call as text", async () => {
    const choice = choiceOf((await endpoint.post(CHAT, { ...request, tool_choice: "none" })).body);
    expect(choice["finish_reason"]).toBe("stop");
    expect(record(choice["message"])["content"]).toContain("<tool_call>");
  });

  test("a forced call that is cut short is text; one of an unknown tool is refused", async () => {
    const forced = { ...request, max_tokens: 2, tool_choice: "required" };
    const choice = choiceOf((await endpoint.post(CHAT, forced)).body);
    expect(String(record(choice["message"])["content"])).toMatch(/^<tool_call>/);
    expect(choice["finish_reason"]).toBe("length");
    const unknown = { ...request, tool_choice: { type: "function", function: { name: "sub" } } };
    expect((await endpoint.post(CHAT, unknown)).status).toBe(400);
  });
});

describe("models that lack something", () => {
  test("without a chat template only completions are answered", async () => {
    const endpoint = await startTestEndpoint((dir) =>
      writeTinyModel(join(dir, "model"), { template: null }).then(() => {}),
    );
    const refused = await endpoint.post(CHAT, asked);
    expect([refused.status, record(refused.body["error"])["message"]]).toEqual([
      400,
      expect.stringContaining("no chat template"),
    ]);
    expect((await endpoint.post("/v1/completions", { model: "base", prompt: "a" })).status).toBe(200);
    await endpoint.close();
  });

  test("a template without tools refuses tools instead of dropping them", async () => {
    const template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    const endpoint = await startTestEndpoint((dir) => writeTinyModel(join(dir, "model"), { template }).then(() => {}));
    const refused = await endpoint.post(CHAT, { ...asked, tools: [{ type: "function", function: { name: "f" } }] });
    expect([refused.status, record(refused.body["error"])["message"]]).toEqual([
      400,
      expect.stringContaining("takes no tools"),
    ]);
    await endpoint.close();
  });

  test("beyond the queue a request gets 429 with whole seconds to wait", async () => {
    const endpoint = await startTestEndpoint((dir) => writeTinyModel(join(dir, "model")).then(() => {}), {
      maxSequences: 1,
      maxWaiting: 1,
    });
    const long = { ...asked, max_tokens: 400, ignore_eos: true };
    const replies = await Promise.all(Array.from({ length: 6 }, () => endpoint.post(CHAT, long)));
    const refused = replies.filter(({ status }) => status === 429);
    expect(replies.filter(({ status }) => status === 200)).toHaveLength(6 - refused.length);
    expect(refused.length).toBeGreaterThanOrEqual(1);
    for (const { headers, body } of refused) {
      expect(headers.get("retry-after")).toMatch(/^[1-9]\d*$/);
      expect(record(body["error"])["code"]).toBe("queue_full");
    }
    await endpoint.close();
  });
});

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** Names and arguments of the calls of a message or a delta. */
function callsOf({ tool_calls: calls }: Record<string, unknown>): Record<string, unknown>[] {
  return Array.isArray(calls) ? calls.map((each) => record(record(each)["function"])) : [];
}

/** The tiny tokenizer's id of one ASCII character. */
function byteId(character: string): number {
  return character.charCodeAt(0);
}
