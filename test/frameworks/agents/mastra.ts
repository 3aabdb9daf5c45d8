import { Agent } from "@mastra/core/agent";
import { createTool } from "@mastra/core/tools";
import { z } from "zod";
import { QUESTION, structuredSchema, type Framework } from "../framework.ts";

export const frameworks: readonly Framework[] = [
  {
    name: "Mastra",
    dialect: "chat",
    async run({ baseUrl, apiKey, model, stream, calculator }) {
      const calculating = new Agent({
        id: "calculating",
        name: "calculating",
        instructions: "Use the calculator.",
        model: { id: `fulgur/${model}`, url: baseUrl, apiKey },
        tools: {
          calculator: createTool({
            id: "calculator",
            description: "adds",
            inputSchema: z.object({ a: z.number(), b: z.number() }),
            execute: (input) => Promise.resolve({ sum: calculator(input) }),
          }),
        },
      });
      if (!stream) return (await calculating.generate(QUESTION)).text;
      return (await calculating.stream(QUESTION)).text;
    },
    async structured({ baseUrl, apiKey, model, stream }) {
      const adding = new Agent({
        id: "adding",
        name: "adding",
        instructions: "Add.",
        model: { id: `fulgur/${model}`, url: baseUrl, apiKey },
      });
      const options = { structuredOutput: { schema: structuredSchema } };
      if (!stream) return (await adding.generate(QUESTION, options)).object;
      return (await adding.stream(QUESTION, options)).object;
    },
  },
];
