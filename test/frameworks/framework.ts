import { z } from "zod";

/** What an agent framework is asked to do in these tests, and how it is pointed at the edge. */

export const QUESTION = "What is 17 + 25? Use the calculator tool.";
export const ANSWER = "The sum is 42.";
export const TOOL_ARGUMENTS = { a: 17, b: 25 };
/** What the model answers where it is to answer in a form, and the form. */
export const STRUCTURED = { sum: 42 };
export const structuredSchema = z.object({ sum: z.number() });

/** What a framework is pointed at, and where its tool reports to. */
export interface FrameworkRun {
  /** With `/v1`, as OpenAI's clients want it; {@link FrameworkRun.origin} without, as Anthropic's. */
  readonly baseUrl: string;
  readonly origin: string;
  readonly apiKey: string;
  readonly model: string;
  readonly stream: boolean;
  /** The calculator: called with what the framework parsed of the model's arguments; returns their sum. */
  readonly calculator: (input: { readonly a: number; readonly b: number }) => number;
}

export interface Framework {
  readonly name: string;
  /** Of the calls that the edge records. */
  readonly dialect: "chat" | "responses" | "messages";
  /** Asks {@link QUESTION} of an agent with one tool `calculator` and returns the text that it ends with. */
  readonly run: (run: FrameworkRun) => Promise<string>;
  /** Asks {@link QUESTION} without a tool, for an answer in the form of {@link structuredSchema}, and returns that. */
  readonly structured?: (run: Omit<FrameworkRun, "calculator">) => Promise<unknown>;
}
