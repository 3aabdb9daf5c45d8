import { errorResponse } from "../../http-errors.ts";
import type { OwnPath } from "../call.ts";
import { chatOfCompletion, completionsAnswer, completionsEncoder } from "./answer.ts";
import { completionsInferenceBody, parseCompletionsRequest, type CompletionsRequest } from "./request.ts";
import type { Dialect, DialectRequest } from "../dialect.ts";

export type CompletionsDialectRequest = DialectRequest & { readonly own: OwnPath };

/** OpenAI's older `POST /v1/completions`, without tools and history. */
export const completionsDialect: Dialect & { parse(text: string): CompletionsDialectRequest } = {
  name: "completions",
  parse(text) {
    const request = parseCompletionsRequest(text);
    return {
      chat: asChatRequest(request),
      own: {
        path: "/v1/completions",
        body: (model, mode) => completionsInferenceBody(request, model, mode),
        asChat: chatOfCompletion,
      },
      whole: (answer) => completionsAnswer(answer, request),
      stream: (head) => completionsEncoder(head, request),
    };
  },
  errorResponse,
};

/** For whoever reads requests as chats: the prompt is what a user said. */
function asChatRequest({ model, prompt, stream, temperature, logprobs }: CompletionsRequest): DialectRequest["chat"] {
  const [first] = prompt;
  const content = typeof prompt === "string" ? prompt : typeof first === "string" ? first : null;
  return { model, messages: [{ role: "user", content }], stream, temperature, logprobs: typeof logprobs === "number" };
}
