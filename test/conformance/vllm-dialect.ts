/**
 * What the edge and the trainer rely on in an inference endpoint, asked through the OpenAI SDK and plain fetch. The
 * built-in endpoint and a vLLM server pass the same suite; that is what makes them interchangeable.
 */

import OpenAI from "openai";
import { beforeAll, describe, expect, test } from "vitest";

/** An endpoint to be tested. */
export interface DialectTarget {
  readonly url: string;
  /** Name of the base model. */
  readonly base: string;
  /** Folder of an adapter that fits it, under a path that the endpoint can read. */
  readonly adapterPath: string;
  /** Name to load it under. */
  readonly adapterName: string;
}

/** Runs the suite; `start` is called once, before its tests. */
export function describeVllmDialect(server: string, start: () => Promise<DialectTarget>): void {
  describe(`${server} speaks the vLLM dialect`, () => {
    let target: DialectTarget;
    let openai: OpenAI;
    const messages = [{ role: "user" as const, content: "hello" }];
    beforeAll(async () => {
      target = await start();
      openai = new OpenAI({ baseURL: `${target.url}/v1`, apiKey: "none", maxRetries: 0 });
    });
    const post = (path: string, body: unknown): Promise<Response> =>
      fetch(`${target.url}${path}`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(body),
      });

    test("a chat answer has ids, log-probabilities, usage and the name that was asked for", async () => {
      const answer = await openai.chat.completions.create({
        model: target.base,
        messages,
        max_tokens: 6,
        logprobs: true,
        temperature: 1,
        ...{ return_token_ids: true, ignore_eos: true },
      });
      expect(answer).toMatchObject({
        object: "chat.completion",
        model: target.base,
        usage: { completion_tokens: 6, total_tokens: (answer.usage?.prompt_tokens ?? 0) + 6 },
        choices: [{ index: 0, finish_reason: "length", message: { role: "assistant" } }],
      });
      const { prompt_token_ids: promptIds } = loose(answer);
      expect(promptIds).toHaveLength(answer.usage?.prompt_tokens ?? 0);
      expect(loose(answer.choices[0])["token_ids"]).toHaveLength(6);
      const logprobs = answer.choices[0]?.logprobs?.content ?? [];
      expect(logprobs).toHaveLength(6);
      for (const { logprob } of logprobs) expect(logprob).toBeLessThanOrEqual(0);
    });

    test("a stream adds up to ids, a finish reason and usage", async () => {
      const stream = await openai.chat.completions.create({
        model: target.base,
        messages,
        max_tokens: 6,
        temperature: 0,
        stream: true,
        stream_options: { include_usage: true },
        ...{ return_token_ids: true, ignore_eos: true },
      });
      const ids: unknown[] = [];
      const reasons: string[] = [];
      let prompt: unknown;
      let completionTokens: number | undefined;
      for await (const chunk of stream) {
        prompt ??= loose(chunk)["prompt_token_ids"];
        const choice = chunk.choices[0];
        const tokens = choice === undefined ? [] : loose(choice)["token_ids"];
        if (Array.isArray(tokens)) ids.push(...tokens.map(Number));
        if (choice?.finish_reason) reasons.push(choice.finish_reason);
        completionTokens = chunk.usage?.completion_tokens ?? completionTokens;
      }
      expect(ids).toHaveLength(6);
      expect(reasons).toEqual(["length"]);
      expect(completionTokens).toBe(6);
      expect(Array.isArray(prompt)).toBe(true);
      const whole = await openai.chat.completions.create({
        model: target.base,
        messages,
        max_tokens: 6,
        temperature: 0,
        ...{ return_token_ids: true, ignore_eos: true },
      });
      expect(loose(whole.choices[0])["token_ids"]).toEqual(ids);
    });

    test("a completion takes token ids and gives back log-probabilities", async () => {
      const answer = await openai.completions.create({
        model: target.base,
        prompt: [5, 6, 7],
        max_tokens: 4,
        logprobs: 1,
        seed: 3,
        ...{ return_token_ids: true, ignore_eos: true },
      });
      expect(answer.usage).toMatchObject({ prompt_tokens: 3, completion_tokens: 4 });
      expect(answer.choices[0]?.logprobs?.token_logprobs).toHaveLength(4);
      expect(loose(answer.choices[0])["token_ids"]).toHaveLength(4);
    });

    test("an adapter is loaded by name, listed with its parent, answers under its name and is unloaded", async () => {
      const name = target.adapterName;
      const loaded = await post("/v1/load_lora_adapter", { lora_name: name, lora_path: target.adapterPath });
      expect([loaded.status, await loaded.text()]).toEqual([200, expect.stringContaining("Success")]);
      const models = await openai.models.list();
      expect(models.data.find(({ id }) => id === name)).toMatchObject({ parent: target.base });
      const answer = await openai.completions.create({ model: name, prompt: "a", max_tokens: 2 });
      expect(answer.model).toBe(name);
      expect((await post("/v1/unload_lora_adapter", { lora_name: name })).status).toBe(200);
      const after = await openai.models.list();
      expect(after.data.map(({ id }) => id)).not.toContain(name);
    });

    test("an unknown model is 404, too many tokens are 400", async () => {
      await expect(openai.completions.create({ model: "nobody", prompt: "a" })).rejects.toMatchObject({ status: 404 });
      await expect(
        openai.completions.create({ model: target.base, prompt: "a", max_tokens: 10_000_000 }),
      ).rejects.toMatchObject({ status: 400 });
    });

    test("health and metrics are there", async () => {
      expect((await fetch(`${target.url}/health`)).status).toBe(200);
      const metrics = await (await fetch(`${target.url}/metrics`)).text();
      for (const name of ["num_requests_running", "num_requests_waiting", "generation_tokens_total"]) {
        expect(metrics).toContain(`vllm:${name}`);
      }
    });
  });
}

/** The fields that the SDK's types do not know. */
function loose(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? { ...value } : {};
}
