/**
 * The built-in model's chat template (Jinja): ChatML with tools named by their signatures, tool calls in
 * `<tool_call>` tags (Qwen and Hermes style) and tool results as turns of role `tool`.
 *
 * Signatures instead of whole JSON schemas: a prompt of 60 tokens instead of 150 is half the cost of a rollout.
 */
export const CHAT_TEMPLATE = `
{%- set first = 0 -%}
{%- if messages and messages[0].role == "system" -%}
{%- set first = 1 -%}
{%- endif -%}
{%- if first == 1 or tools -%}
{{ "<|im_start|>system\\n" }}
{%- if first == 1 -%}
{{ messages[0].content }}
{%- endif -%}
{%- if tools -%}
{{ "\\n<tools>\\n" }}
{%- for tool in tools -%}
{%- set function = tool.function if tool.function else tool -%}
{{ function.name + "(" }}
{%- if function.parameters and function.parameters.properties -%}
{%- for name in function.parameters.properties -%}
{{ name if loop.first else ", " + name }}
{%- endfor -%}
{%- endif -%}
{{ "): " + function.description + "\\n" if function.description else ")\\n" }}
{%- endfor -%}
{{ "</tools>" }}
{%- endif -%}
{{ "<|im_end|>\\n" }}
{%- endif -%}
{%- for message in messages[first:] -%}
{{ "<|im_start|>" + message.role + "\\n" }}
{%- if message.content -%}
{{ message.content }}
{%- endif -%}
{%- if message.role == "assistant" and message.tool_calls -%}
{%- for tool_call in message.tool_calls -%}
{%- set call = tool_call.function if tool_call.function else tool_call -%}
{%- if message.content or not loop.first -%}
{{ "\\n" }}
{%- endif -%}
{{ '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
{{- call.arguments if call.arguments is string else call.arguments | tojson -}}
{{ "}\\n</tool_call>" }}
{%- endfor -%}
{%- endif -%}
{{ "<|im_end|>\\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ "<|im_start|>assistant\\n" }}
{%- endif -%}
`.trim();

/** Text that opens a turn of a role. */
export const turnStart = (role: "system" | "user" | "assistant" | "tool"): string => `<|im_start|>${role}\n`;

/** Text that ends every turn; a model's own turn ends with the token before the newline. */
export const TURN_END = "<|im_end|>";
