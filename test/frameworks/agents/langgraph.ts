import { HumanMessage, type AIMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { END, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { ToolNode } from "@langchain/langgraph/prebuilt";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";
import { QUESTION, type Framework } from "../framework.ts";

export const frameworks: readonly Framework[] = [
  {
    name: "a LangGraph graph",
    dialect: "chat",
    async run({ baseUrl, apiKey, model, stream, calculator }) {
      const tools = [
        tool((input: { a: number; b: number }) => String(calculator(input)), {
          name: "calculator",
          description: "adds",
          schema: z.object({ a: z.number(), b: z.number() }),
        }),
      ];
      const llm = new ChatOpenAI({
        model,
        apiKey,
        maxRetries: 0,
        configuration: { baseURL: baseUrl },
      }).bindTools(tools);
      const graph = new StateGraph(MessagesAnnotation)
        .addNode("model", async ({ messages }) => ({ messages: [await llm.invoke(messages)] }))
        .addNode("tools", new ToolNode(tools))
        .addEdge(START, "model")
        .addConditionalEdges("model", ({ messages }) =>
          ((messages.at(-1) as AIMessage | undefined)?.tool_calls ?? []).length > 0 ? "tools" : END,
        )
        .addEdge("tools", "model")
        .compile();
      const input = { messages: [new HumanMessage(QUESTION)] };
      if (!stream) return (await graph.invoke(input)).messages.at(-1)?.text ?? "";
      let text = "";
      // Mode `messages` makes the model stream; the other has the state after each step.
      for await (const [mode, chunk] of await graph.stream(input, { streamMode: ["messages", "values"] })) {
        if (mode === "values") text = chunk.messages.at(-1)?.text ?? "";
      }
      return text;
    },
  },
];
