import OpenAI from "openai";
import type { ChatCompletionMessageParam } from "openai/resources/chat/completions";
import { makeWorld, spacedJson, SYSTEM, TOOLS, type World } from "./world.ts";

/** Books a flight: the model may look up what the traveller prefers, search for flights, and answers when it likes. */

export interface FlightInput {
  /** What the traveller's assistant is asked. */
  readonly message: string;
  /** Seed of the world that the tools look into. */
  readonly world: number;
}

/** Runs a tool of the world on what the model sent. @returns what the model is told */
export type RunTool = (world: World, name: string, argumentsText: string) => string | Promise<string>;

/** After so many turns of tools the agent takes what was said last as its answer. */
const MAX_TURNS = 6;

/**
 * Runs the agent once.
 * @param runTool stands between the agent and its tools; theirs answer at once
 * @returns the assistant's last text, empty where it never said anything
 * @throws OpenAI.APIError when the model cannot be reached
 */
export async function bookFlight(
  input: FlightInput,
  env: { readonly OPENAI_BASE_URL: string; readonly OPENAI_API_KEY: string },
  runTool: RunTool = useTool,
): Promise<string> {
  const openai = new OpenAI({ baseURL: env.OPENAI_BASE_URL, apiKey: env.OPENAI_API_KEY });
  const world = makeWorld(input.world);
  const messages: ChatCompletionMessageParam[] = [
    { role: "system", content: SYSTEM },
    { role: "user", content: input.message },
  ];
  let said = "";
  for (let turn = 0; turn < MAX_TURNS; turn++) {
    const completion = await openai.chat.completions.create({
      model: "gpt-4o-mini",
      messages,
      tools: [...TOOLS],
      temperature: 1,
      max_tokens: 64,
    });
    const message = completion.choices[0]?.message;
    if (message === undefined) break;
    messages.push(message);
    said = message.content ?? said;
    const toolCalls = message.tool_calls ?? [];
    if (toolCalls.length === 0) break;
    for (const toolCall of toolCalls) {
      if (toolCall.type !== "function") continue;
      const content = await runTool(world, toolCall.function.name, toolCall.function.arguments);
      messages.push({ role: "tool", tool_call_id: toolCall.id, content });
    }
  }
  return said;
}

/** What a tool of the world answers; a mistake of the model's is an answer too. */
export function useTool(world: World, name: string, argumentsText: string): string {
  let args: unknown;
  try {
    args = JSON.parse(argumentsText);
  } catch {
    return spacedJson({ error: "arguments are not JSON" });
  }
  switch (name) {
    case "memory":
      return world.memory(args);
    case "search":
      return world.search(args);
    default:
      return spacedJson({ error: "unknown tool" });
  }
}
