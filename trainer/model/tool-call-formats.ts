/** Which format a model writes its tool calls in; a further one is a file and a line here. */

import { llamaToolCalls } from "./llama-tool-call.ts";
import { hermesToolCalls, type ToolCallFormat } from "./tool-call.ts";

const FORMATS: readonly { readonly sign: string; readonly format: ToolCallFormat }[] = [
  { sign: "<tool_call>", format: hermesToolCalls },
  { sign: "<|python_tag|>", format: llamaToolCalls },
  { sign: '{"name": function name', format: llamaToolCalls },
];

/** The format that a chat template shows to its model; Hermes where it shows none. */
export function toolCallFormatOf(templateSource: string): ToolCallFormat {
  return FORMATS.find(({ sign }) => templateSource.includes(sign))?.format ?? hermesToolCalls;
}
