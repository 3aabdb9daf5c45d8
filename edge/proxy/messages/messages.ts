import type { Dialect } from "../dialect.ts";
import { messagesAnswer } from "./answer.ts";
import { messagesErrorResponse } from "./error.ts";
import { chatOfMessages, parseMessagesRequest, showsThinking } from "./request.ts";
import { messagesEncoder } from "./stream.ts";

/** Anthropic's `POST /v1/messages`; each request has its whole conversation, so there is no history to ask for. */
export const messagesDialect: Dialect = {
  name: "messages",
  parse(text) {
    const request = parseMessagesRequest(text);
    const options = { thinking: showsThinking(request) };
    return {
      chat: chatOfMessages(request),
      whole: (answer) => messagesAnswer(answer, options),
      stream: (head) => messagesEncoder(head, options),
    };
  },
  errorResponse: messagesErrorResponse,
};
