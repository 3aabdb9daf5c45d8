import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { QUESTION, structuredSchema, type Framework } from "../framework.ts";

export const frameworks: readonly Framework[] = [
  {
    name: "Anthropic's SDK",
    dialect: "messages",
    async run({ origin, apiKey, model, stream, calculator }) {
      const client = new Anthropic({ baseURL: origin, apiKey, maxRetries: 0 });
      const messages: Anthropic.MessageParam[] = [{ role: "user", content: QUESTION }];
      const tools: Anthropic.Tool[] = [
        {
          name: "calculator",
          description: "adds",
          input_schema: {
            type: "object",
            properties: { a: { type: "number" }, b: { type: "number" } },
            required: ["a", "b"],
          },
        },
      ];
      for (;;) {
        const params = { model, max_tokens: 256, messages, tools };
        const message = stream
          ? await client.messages.stream(params).finalMessage()
          : await client.messages.create(params);
        if (message.stop_reason !== "tool_use") {
          return message.content.map((block) => (block.type === "text" ? block.text : "")).join("");
        }
        messages.push({ role: "assistant", content: message.content });
        messages.push({
          role: "user",
          content: message.content
            .filter((block) => block.type === "tool_use")
            .map((block) => ({
              type: "tool_result" as const,
              tool_use_id: block.id,
              content: String(calculator(block.input as { a: number; b: number })),
            })),
        });
      }
    },
    async structured({ origin, apiKey, model, stream }) {
      const client = new Anthropic({ baseURL: origin, apiKey, maxRetries: 0 });
      const params = {
        model,
        max_tokens: 256,
        messages: [{ role: "user" as const, content: QUESTION }],
        output_config: { format: zodOutputFormat(structuredSchema) },
      };
      const message = stream
        ? await client.messages.stream(params).finalMessage()
        : await client.messages.parse(params);
      return message.parsed_output;
    },
  },
];
