import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, streamText, tool, type LanguageModel } from "ai";
import { z } from "zod";
import { QUESTION, type Framework, type FrameworkRun } from "../framework.ts";

export const frameworks: readonly Framework[] = [
  {
    name: "the AI SDK with openai()",
    dialect: "responses",
    run: (run) => ask(run, createOpenAI({ baseURL: run.baseUrl, apiKey: run.apiKey })(run.model)),
  },
  {
    name: "the AI SDK with openai.chat()",
    dialect: "chat",
    run: (run) => ask(run, createOpenAI({ baseURL: run.baseUrl, apiKey: run.apiKey }).chat(run.model)),
  },
  {
    name: "the AI SDK with openai-compatible",
    dialect: "chat",
    run: (run) =>
      ask(run, createOpenAICompatible({ name: "fulgur", baseURL: run.baseUrl, apiKey: run.apiKey })(run.model)),
  },
  {
    name: "the AI SDK with anthropic()",
    dialect: "messages",
    run: (run) => ask(run, createAnthropic({ baseURL: run.baseUrl, apiKey: run.apiKey })(run.model)),
  },
];

async function ask({ stream, calculator }: FrameworkRun, model: LanguageModel): Promise<string> {
  const params = {
    model,
    prompt: QUESTION,
    maxRetries: 0,
    stopWhen: isStepCount(4),
    tools: {
      calculator: tool({
        description: "adds",
        inputSchema: z.object({ a: z.number(), b: z.number() }),
        execute: (input) => String(calculator(input)),
      }),
    },
  };
  return stream ? streamText(params).text : (await generateText(params)).text;
}
