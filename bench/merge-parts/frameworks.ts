import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { ChatOpenAI } from "@langchain/openai";
import { Agent as MastraAgent } from "@mastra/core/agent";
import { createTool } from "@mastra/core/tools";
import { Agent, OpenAIProvider, Runner, tool as agentsTool } from "@openai/agents";
import { generateText, isStepCount, streamText, tool as aiTool, type LanguageModel } from "ai";
import { createAgent, tool as langchainTool } from "langchain";
import OpenAI from "openai";
import type { RunnableToolFunctionWithParse } from "openai/lib/RunnableFunction";
import type { ChatCompletionMessageParam } from "openai/resources/chat/completions";
import type { ResponseInputItem } from "openai/resources/responses/responses";
import { z } from "zod";

/** One agent, with two tools and several turns, as each of Node's agent frameworks runs it. */

/** What an agent is pointed at and asked. */
export interface AgentRun {
  /** With `/v1`, as OpenAI's clients want it; {@link AgentRun.origin} without, as Anthropic's. */
  readonly baseUrl: string;
  readonly origin: string;
  readonly apiKey: string;
  readonly model: string;
  readonly stream: boolean;
  readonly system: string;
  readonly question: string;
  readonly maxTurns: number;
  readonly tools: readonly AgentTool[];
}

export interface AgentTool {
  readonly name: string;
  readonly description: string;
  readonly parameters: z.ZodObject;
  readonly run: (input: unknown) => string;
}

export interface AgentFramework {
  readonly name: string;
  /** Runs the agent to its end; what it ends with does not matter here. */
  readonly run: (run: AgentRun) => Promise<unknown>;
}

/** Of one answer; the built-in model's are far shorter. */
const MAX_TOKENS = 64;

export const FRAMEWORKS: readonly AgentFramework[] = [
  { name: "openai, chat", run: openaiChat },
  { name: "openai, chat tool runner", run: openaiToolRunner },
  { name: "openai, responses with items", run: (run) => openaiResponses(run, "items") },
  { name: "openai, responses with previous_response_id", run: (run) => openaiResponses(run, "previous") },
  { name: "@openai/agents, responses", run: (run) => openaiAgents(run, true) },
  { name: "@openai/agents, chat", run: (run) => openaiAgents(run, false) },
  { name: "LangChain.js, chat", run: (run) => langchain(run, false) },
  { name: "LangChain.js, responses", run: (run) => langchain(run, true) },
  aiSdk("openai()", ({ baseUrl: baseURL, apiKey, model }) => createOpenAI({ baseURL, apiKey })(model)),
  aiSdk("openai.chat()", ({ baseUrl: baseURL, apiKey, model }) => createOpenAI({ baseURL, apiKey }).chat(model)),
  aiSdk("openai-compatible", ({ baseUrl: baseURL, apiKey, model }) =>
    createOpenAICompatible({ name: "fulgur", baseURL, apiKey })(model),
  ),
  aiSdk("anthropic()", ({ baseUrl: baseURL, apiKey, model }) => createAnthropic({ baseURL, apiKey })(model)),
  { name: "Anthropic's SDK", run: anthropic },
  { name: "Mastra", run: mastra },
];

function answerOf({ tools }: AgentRun, name: string, text: string): string {
  const tool = tools.find((each) => each.name === name);
  if (tool === undefined) return `{"error": "unknown tool"}`;
  try {
    return tool.run(JSON.parse(text));
  } catch {
    return `{"error": "arguments are not JSON"}`;
  }
}

function schemaOf(parameters: z.ZodObject): Record<string, unknown> {
  return { ...z.toJSONSchema(parameters) };
}

function functionsOf({ tools }: AgentRun) {
  return tools.map(({ name, description, parameters }) => ({
    type: "function" as const,
    function: { name, description, parameters: schemaOf(parameters) },
  }));
}

async function openaiChat(run: AgentRun): Promise<void> {
  const client = new OpenAI({ baseURL: run.baseUrl, apiKey: run.apiKey, maxRetries: 0 });
  const messages: ChatCompletionMessageParam[] = [
    { role: "system", content: run.system },
    { role: "user", content: run.question },
  ];
  for (let turn = 0; turn < run.maxTurns; turn++) {
    const params = { model: run.model, messages, tools: functionsOf(run), max_tokens: MAX_TOKENS };
    const completion = run.stream
      ? await client.chat.completions.stream(params).finalChatCompletion()
      : await client.chat.completions.create(params);
    const message = completion.choices[0]?.message;
    if (message === undefined) return;
    messages.push(message);
    const calls = message.tool_calls ?? [];
    if (calls.length === 0) return;
    for (const call of calls) {
      if (call.type !== "function") continue;
      const content = answerOf(run, call.function.name, call.function.arguments);
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
}

async function openaiToolRunner(run: AgentRun): Promise<void> {
  const client = new OpenAI({ baseURL: run.baseUrl, apiKey: run.apiKey, maxRetries: 0 });
  const tools = run.tools.map(
    ({ name, description, parameters, run: answer }): RunnableToolFunctionWithParse<object> => ({
      type: "function",
      function: {
        name,
        description,
        parameters: schemaOf(parameters),
        parse: parsedObject,
        function: answer,
      },
    }),
  );
  const params = {
    ...{ model: run.model, max_tokens: MAX_TOKENS, tools },
    messages: [
      { role: "system" as const, content: run.system },
      { role: "user" as const, content: run.question },
    ],
  };
  const options = { maxChatCompletions: run.maxTurns };
  const runner = run.stream
    ? client.chat.completions.runTools({ ...params, stream: true }, options)
    : client.chat.completions.runTools({ ...params, stream: false }, options);
  await runner.done();
}

function parsedObject(text: string): object {
  return Object(JSON.parse(text)) as object;
}

async function openaiResponses(run: AgentRun, join: "items" | "previous"): Promise<void> {
  const client = new OpenAI({ baseURL: run.baseUrl, apiKey: run.apiKey, maxRetries: 0 });
  const tools = functionsOf(run).map(({ function: { name, description, parameters } }) => ({
    ...{ type: "function" as const, name, description, parameters, strict: false },
  }));
  let input: ResponseInputItem[] = [{ role: "user", content: run.question }];
  let previous: string | undefined;
  for (let turn = 0; turn < run.maxTurns; turn++) {
    const params = {
      ...{ model: run.model, instructions: run.system, input, tools, max_output_tokens: MAX_TOKENS },
      ...(previous === undefined ? {} : { previous_response_id: previous }),
    };
    const response = run.stream
      ? await client.responses.stream(params).finalResponse()
      : await client.responses.create(params);
    const calls = response.output.flatMap((item) => (item.type === "function_call" ? [item] : []));
    if (calls.length === 0) return;
    const results = calls.map((call) => ({
      type: "function_call_output" as const,
      call_id: call.call_id,
      output: answerOf(run, call.name, call.arguments),
    }));
    if (join === "previous") previous = response.id;
    input = join === "previous" ? results : [...input, ...(response.output as ResponseInputItem[]), ...results];
  }
}

async function openaiAgents(run: AgentRun, useResponses: boolean): Promise<void> {
  const client = new OpenAI({ baseURL: run.baseUrl, apiKey: run.apiKey, maxRetries: 0 });
  const runner = new Runner({
    modelProvider: new OpenAIProvider({ openAIClient: client as never, useResponses }),
    tracingDisabled: true,
  });
  const agent = new Agent({
    name: "booking",
    instructions: run.system,
    model: run.model,
    modelSettings: { maxTokens: MAX_TOKENS },
    tools: run.tools.map(({ name, description, parameters, run: answer }) =>
      agentsTool({ name, description, parameters, execute: (input: unknown) => answer(input) }),
    ),
  });
  if (!run.stream) await runner.run(agent, run.question, { maxTurns: run.maxTurns });
  else await (await runner.run(agent, run.question, { maxTurns: run.maxTurns, stream: true })).completed;
}

async function langchain(run: AgentRun, useResponsesApi: boolean): Promise<void> {
  const agent = createAgent({
    model: new ChatOpenAI({
      ...{ model: run.model, apiKey: run.apiKey, useResponsesApi, maxRetries: 0, maxTokens: MAX_TOKENS },
      configuration: { baseURL: run.baseUrl },
    }),
    systemPrompt: run.system,
    tools: run.tools.map(({ name, description, parameters, run: answer }) =>
      langchainTool((input: unknown) => answer(input), { name, description, schema: parameters }),
    ),
  });
  const input = { messages: [{ role: "user" as const, content: run.question }] };
  // A turn is a step of the model's and one of the tools'.
  const options = { recursionLimit: 2 * run.maxTurns };
  if (!run.stream) return void (await agent.invoke(input, options));
  for await (const _ of await agent.stream(input, { ...options, streamMode: "messages" }));
}

function aiSdk(provider: string, modelOf: (run: AgentRun) => LanguageModel): AgentFramework {
  return {
    name: `AI SDK, ${provider}`,
    async run(run) {
      const params = {
        model: modelOf(run),
        ...{ instructions: run.system, prompt: run.question, maxRetries: 0, maxOutputTokens: MAX_TOKENS },
        stopWhen: isStepCount(run.maxTurns),
        tools: Object.fromEntries(
          run.tools.map(({ name, description, parameters, run: answer }) => [
            name,
            aiTool({ description, inputSchema: parameters, execute: (input: unknown) => answer(input) }),
          ]),
        ),
      };
      if (run.stream) await streamText(params).text;
      else await generateText(params);
    },
  };
}

async function anthropic(run: AgentRun): Promise<void> {
  const client = new Anthropic({ baseURL: run.origin, apiKey: run.apiKey, maxRetries: 0 });
  const messages: Anthropic.MessageParam[] = [{ role: "user", content: run.question }];
  const tools = run.tools.map(({ name, description, parameters }) => ({
    ...{ name, description, input_schema: { ...schemaOf(parameters), type: "object" as const } },
  }));
  for (let turn = 0; turn < run.maxTurns; turn++) {
    const params = { model: run.model, system: run.system, max_tokens: MAX_TOKENS, messages, tools };
    const message = run.stream
      ? await client.messages.stream(params).finalMessage()
      : await client.messages.create(params);
    const uses = message.content.filter((block) => block.type === "tool_use");
    if (uses.length === 0) return;
    messages.push({ role: "assistant", content: message.content });
    messages.push({
      role: "user",
      content: uses.map(({ id, name, input }) => ({
        ...{ type: "tool_result" as const, tool_use_id: id, content: answerOf(run, name, JSON.stringify(input)) },
      })),
    });
  }
}

async function mastra(run: AgentRun): Promise<void> {
  const agent = new MastraAgent({
    id: "booking",
    name: "booking",
    instructions: run.system,
    model: { id: `fulgur/${run.model}`, url: run.baseUrl, apiKey: run.apiKey },
    tools: Object.fromEntries(
      run.tools.map(({ name, description, parameters, run: answer }) => [
        name,
        createTool({
          id: name,
          description,
          inputSchema: parameters,
          execute: async (input: unknown) => answer(input),
        }),
      ]),
    ),
  });
  const options = { maxSteps: run.maxTurns, modelSettings: { maxOutputTokens: MAX_TOKENS, maxRetries: 0 } };
  if (run.stream) await (await agent.stream(run.question, options)).text;
  else await agent.generate(run.question, options);
}
