import OpenAI from "openai";
import type { ResponseInputItem } from "openai/resources/responses/responses";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { QUESTION, structuredSchema, type Framework, type FrameworkRun } from "../framework.ts";

export const frameworks: readonly Framework[] = [
  {
    name: "openai's chat tool runner",
    dialect: "chat",
    async run({ baseUrl, apiKey, model, stream, calculator }) {
      const client = new OpenAI({ baseURL: baseUrl, apiKey, maxRetries: 0 });
      const params = {
        model,
        messages: [{ role: "user" as const, content: QUESTION }],
        tools: [
          {
            type: "function" as const,
            function: {
              name: "calculator",
              description: "adds",
              parameters,
              parse: JSON.parse,
              function: (input: { a: number; b: number }) => String(calculator(input)),
            },
          },
        ],
      };
      const runner = stream
        ? client.chat.completions.runTools({ ...params, stream: true })
        : client.chat.completions.runTools({ ...params, stream: false });
      return (await runner.finalContent()) ?? "";
    },
    async structured({ baseUrl, apiKey, model, stream }) {
      const client = new OpenAI({ baseURL: baseUrl, apiKey, maxRetries: 0 });
      const params = {
        model,
        messages: [{ role: "user" as const, content: QUESTION }],
        response_format: zodResponseFormat(structuredSchema, "sum"),
      };
      const completion = stream
        ? await client.chat.completions.stream(params).finalChatCompletion()
        : await client.chat.completions.parse(params);
      return completion.choices[0]?.message.parsed;
    },
  },
  {
    name: "openai's responses, with all items",
    dialect: "responses",
    run: (run) => responses(run, "items"),
    async structured({ baseUrl, apiKey, model, stream }) {
      const client = new OpenAI({ baseURL: baseUrl, apiKey, maxRetries: 0 });
      const params = { model, input: QUESTION, text: { format: zodTextFormat(structuredSchema, "sum") } };
      const response = stream
        ? await client.responses.stream(params).finalResponse()
        : await client.responses.parse(params);
      return response.output_parsed;
    },
  },
  {
    name: "openai's responses, with previous_response_id",
    dialect: "responses",
    run: (run) => responses(run, "previous"),
  },
];

const parameters = {
  type: "object",
  properties: { a: { type: "number" }, b: { type: "number" } },
  required: ["a", "b"],
  additionalProperties: false,
};

function add(calculator: FrameworkRun["calculator"], text: string): string {
  return String(calculator(JSON.parse(text) as { a: number; b: number }));
}

async function responses(
  { baseUrl, apiKey, model, stream, calculator }: FrameworkRun,
  join: "items" | "previous",
): Promise<string> {
  const client = new OpenAI({ baseURL: baseUrl, apiKey, maxRetries: 0 });
  const tools = [{ type: "function" as const, name: "calculator", parameters, strict: true }];
  let input: ResponseInputItem[] = [{ role: "user", content: QUESTION }];
  let previous: string | undefined;
  for (;;) {
    const params = { model, input, tools, ...(previous === undefined ? {} : { previous_response_id: previous }) };
    const response = stream
      ? await client.responses.stream(params).finalResponse()
      : await client.responses.create(params);
    const calls = response.output.flatMap((item) => (item.type === "function_call" ? [item] : []));
    if (calls.length === 0) return response.output_text;
    const results = calls.map((call) => ({
      type: "function_call_output" as const,
      call_id: call.call_id,
      output: add(calculator, call.arguments),
    }));
    if (join === "previous") previous = response.id;
    input = join === "previous" ? results : [...input, ...(response.output as ResponseInputItem[]), ...results];
  }
}
