import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { startTestEdge, type TestEdge } from "../../support/edge.ts";

/**
 * Replays what real frameworks sent (recorded from their own clients; one request a line) and checks the answers against
 * the strictest of their parsers: each required field is needed by at least one of them.
 */
const FOLDER = join(import.meta.dirname, "../../fixtures/wire");
const recorded = z.object({
  path: z.string(),
  headers: z.record(z.string(), z.string()),
  body: z.looseObject({
    n: z.int().optional(),
    stream: z.boolean().optional(),
    stream_options: z.looseObject({ include_usage: z.boolean().optional() }).optional(),
  }),
});

const toolCall = z.strictObject({
  id: z.string().min(1),
  type: z.literal("function"),
  function: z.strictObject({ name: z.string().min(1), arguments: z.string() }),
});
const usage = z.strictObject({ prompt_tokens: z.int(), completion_tokens: z.int(), total_tokens: z.int() });
const finish = z.enum(["stop", "length", "tool_calls", "content_filter"]);
const wholeAnswer = z.strictObject({
  id: z.string().min(1),
  object: z.literal("chat.completion"),
  created: z.int(),
  model: z.string(),
  choices: z.tuple([
    z.strictObject({
      index: z.literal(0),
      message: z.strictObject({
        role: z.literal("assistant"),
        content: z.string().nullable(),
        tool_calls: z.array(toolCall).min(1).optional(),
      }),
      finish_reason: finish,
      logprobs: z.null(),
    }),
  ]),
  usage,
});
const chunk = z.strictObject({
  id: z.string().min(1),
  object: z.literal("chat.completion.chunk"),
  created: z.int(),
  model: z.string(),
  choices: z.tuple([
    z.strictObject({
      index: z.literal(0),
      delta: z.strictObject({
        role: z.literal("assistant").optional(),
        content: z.string().nullable().optional(),
        tool_calls: z.array(z.looseObject({ index: z.int() })).optional(),
      }),
      finish_reason: finish.nullable(),
    }),
  ]),
});
const usageChunk = z.strictObject({ ...chunk.shape, choices: z.tuple([]), usage });

const files = readdirSync(FOLDER).filter((file) => file.endsWith(".jsonl"));

let edge: TestEdge;
beforeAll(async () => {
  edge = await startTestEdge();
});
afterAll(() => edge.stop());

describe("every framework's recorded chat request", () => {
  it("is there to be replayed", () => {
    expect(files.length).toBeGreaterThanOrEqual(20);
  });

  it.each(files)("%s gets a whole answer, with text and with a tool call", async (file) => {
    const requests = readFileSync(join(FOLDER, file), "utf8").trim().split("\n");
    for (const line of requests) {
      const { path, headers, body } = recorded.parse(JSON.parse(line));
      for (const reply of [
        { tokens: ["4", "2"] },
        { tokens: ["x"], toolCalls: [{ id: "call_1", name: "calculator", arguments: '{"a":17,"b":25}' }] },
      ]) {
        edge.inference.answer = () => reply;
        const { id, token } = await edge.rollout();
        const response = await fetch(`${edge.url}${path}`, {
          method: "POST",
          headers: { ...headers, authorization: `Bearer ${token}` },
          body: JSON.stringify(body),
        });
        if ((body.n ?? 1) > 1) {
          expect(response.status).toBe(400);
          expect(await response.text()).toContain("n = 1");
          continue;
        }
        expect(response.status).toBe(200);
        if (body.stream === true) checkStream(await response.text(), body.stream_options?.include_usage === true);
        else wholeAnswer.parse(await response.json());
        const { calls } = await edge.admin.readRollout(id);
        expect(calls).toHaveLength(1);
        expect(calls[0]).toMatchObject({ request: body, trainable: true });
      }
    }
  });
});

function checkStream(text: string, wantsUsage: boolean): void {
  const events = text
    .split("\n\n")
    .filter((event) => event !== "")
    .map((event) => event.replace(/^data: /, ""));
  expect(events.pop()).toBe("[DONE]");
  if (wantsUsage) usageChunk.parse(JSON.parse(events.pop() ?? ""));
  const chunks = events.map((event) => chunk.parse(JSON.parse(event)));
  expect(chunks[0]?.choices[0].delta.role).toBe("assistant");
  expect(chunks.filter(({ choices }) => choices[0].finish_reason !== null)).toHaveLength(1);
  expect(chunks.at(-1)?.choices[0].finish_reason).not.toBeNull();
}
