import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, Output, streamText, tool, type LanguageModel } from "ai";
import { z } from "zod";
import { QUESTION, structuredSchema, type Framework, type FrameworkRun } from "../framework.ts";

type Pointed = Pick<FrameworkRun, "baseUrl" | "apiKey" | "model">;

export const frameworks: readonly Framework[] = [
  framework("openai()", "responses", ({ baseUrl: baseURL, apiKey, model }) => createOpenAI({ baseURL, apiKey })(model)),
  framework("openai.chat()", "chat", ({ baseUrl: baseURL, apiKey, model }) =>
    createOpenAI({ baseURL, apiKey }).chat(model),
  ),
  framework("openai-compatible", "chat", ({ baseUrl: baseURL, apiKey, model }) =>
    createOpenAICompatible({ name: "fulgur", baseURL, apiKey, supportsStructuredOutputs: true })(model),
  ),
  framework("anthropic()", "messages", ({ baseUrl: baseURL, apiKey, model }) =>
    createAnthropic({ baseURL, apiKey })(model),
  ),
];

function framework(
  provider: string,
  dialect: Framework["dialect"],
  modelOf: (run: Pointed) => LanguageModel,
): Framework {
  return {
    name: `the AI SDK with ${provider}`,
    dialect,
    run: (run) => ask(run, modelOf(run)),
    async structured({ stream, ...run }) {
      const params = {
        model: modelOf(run),
        prompt: QUESTION,
        maxRetries: 0,
        output: Output.object({ schema: structuredSchema }),
      };
      return stream ? streamText(params).output : (await generateText(params)).output;
    },
  };
}

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
