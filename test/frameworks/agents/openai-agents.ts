import { Agent, OpenAIProvider, Runner, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";
import { QUESTION, structuredSchema, type Framework, type FrameworkRun } from "../framework.ts";

export const frameworks: readonly Framework[] = [
  {
    name: "@openai/agents on responses",
    dialect: "responses",
    run: (run) => agent(run, true),
    structured: (run) => structured(run, true),
  },
  {
    name: "@openai/agents on chat",
    dialect: "chat",
    run: (run) => agent(run, false),
    structured: (run) => structured(run, false),
  },
];

async function agent(
  { baseUrl, apiKey, model, stream, calculator }: FrameworkRun,
  useResponses: boolean,
): Promise<string> {
  const runner = runnerOf({ baseUrl, apiKey }, useResponses);
  const calculating = new Agent({
    name: "calculating",
    instructions: "Use the calculator.",
    model,
    tools: [
      tool({
        name: "calculator",
        description: "adds",
        parameters: z.object({ a: z.number(), b: z.number() }),
        execute: (input) => String(calculator(input)),
      }),
    ],
  });
  if (!stream) return (await runner.run(calculating, QUESTION)).finalOutput ?? "";
  const result = await runner.run(calculating, QUESTION, { stream: true });
  await result.completed;
  return result.finalOutput ?? "";
}

async function structured(
  { baseUrl, apiKey, model, stream }: Omit<FrameworkRun, "calculator">,
  useResponses: boolean,
): Promise<unknown> {
  const runner = runnerOf({ baseUrl, apiKey }, useResponses);
  const adding = new Agent({ name: "adding", instructions: "Add.", model, outputType: structuredSchema });
  if (!stream) return (await runner.run(adding, QUESTION)).finalOutput;
  const result = await runner.run(adding, QUESTION, { stream: true });
  await result.completed;
  return result.finalOutput;
}

function runnerOf({ baseUrl, apiKey }: Pick<FrameworkRun, "baseUrl" | "apiKey">, useResponses: boolean): Runner {
  const openAIClient = new OpenAI({ baseURL: baseUrl, apiKey, maxRetries: 0 });
  return new Runner({
    modelProvider: new OpenAIProvider({ openAIClient: openAIClient as never, useResponses }),
    tracingDisabled: true,
  });
}
