import { ChatOpenAI } from "@langchain/openai";
import { createAgent, tool } from "langchain";
import { z } from "zod";
import { QUESTION, structuredSchema, type Framework, type FrameworkRun } from "../framework.ts";

export const frameworks: readonly Framework[] = [
  {
    name: "LangChain's createAgent on chat",
    dialect: "chat",
    run: (run) => agent(run, false),
    structured: (run) => structured(run, false),
  },
  {
    name: "LangChain's createAgent on responses",
    dialect: "responses",
    run: (run) => agent(run, true),
    structured: (run) => structured(run, true),
  },
];

async function agent(
  { baseUrl, apiKey, model, stream, calculator }: FrameworkRun,
  useResponsesApi: boolean,
): Promise<string> {
  const calculating = createAgent({
    model: modelOf({ baseUrl, apiKey, model }, useResponsesApi),
    tools: [
      tool((input: { a: number; b: number }) => String(calculator(input)), {
        name: "calculator",
        description: "adds",
        schema: z.object({ a: z.number(), b: z.number() }),
      }),
    ],
  });
  const input = { messages: [{ role: "user" as const, content: QUESTION }] };
  if (!stream) return (await calculating.invoke(input)).messages.at(-1)?.text ?? "";
  let text = "";
  // Mode `messages` makes the model stream; the other has the state after each step.
  for await (const [mode, chunk] of await calculating.stream(input, { streamMode: ["messages", "values"] })) {
    if (mode === "values") text = chunk.messages.at(-1)?.text ?? "";
  }
  return text;
}

async function structured(
  { stream, ...run }: Omit<FrameworkRun, "calculator">,
  useResponsesApi: boolean,
): Promise<unknown> {
  const adding = modelOf(run, useResponsesApi).withStructuredOutput(structuredSchema, { method: "jsonSchema" });
  if (!stream) return adding.invoke(QUESTION);
  let parsed: unknown;
  for await (const chunk of await adding.stream(QUESTION)) parsed = chunk;
  return parsed;
}

function modelOf(
  { baseUrl, apiKey, model }: Pick<FrameworkRun, "baseUrl" | "apiKey" | "model">,
  useResponsesApi: boolean,
): ChatOpenAI {
  return new ChatOpenAI({ model, apiKey, useResponsesApi, maxRetries: 0, configuration: { baseURL: baseUrl } });
}
