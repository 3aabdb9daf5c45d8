import { afterAll } from "vitest";
import { frameworks as aiSdk } from "./agents/ai-sdk.ts";
import { frameworks as anthropic } from "./agents/anthropic.ts";
import { frameworks as langchain } from "./agents/langchain.ts";
import { frameworks as mastra } from "./agents/mastra.ts";
import { frameworks as openai } from "./agents/openai.ts";
import { frameworks as openaiAgents } from "./agents/openai-agents.ts";
import { inWorkerd } from "./in-workerd.ts";
import { describeFrameworks } from "./suite.ts";

const workers = [
  inWorkerd("openai", openai),
  inWorkerd("anthropic", anthropic),
  inWorkerd("openai-agents", openaiAgents),
  inWorkerd("langchain", langchain),
  inWorkerd("ai-sdk", aiSdk),
  inWorkerd("mastra", mastra),
];
afterAll(async () => {
  for (const worker of workers) await worker.stop();
});

describeFrameworks(workers.flatMap(({ frameworks }) => frameworks));
