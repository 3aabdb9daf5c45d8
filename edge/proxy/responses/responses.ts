import { errorResponse } from "../../http-errors.ts";
import type { ChatMessage, Dialect, DialectRequest } from "../dialect.ts";
import { wholeResponse } from "./answer.ts";
import type { InputOptions } from "./items.ts";
import { readResponsesRequest } from "./request.ts";
import { responseStream } from "./stream.ts";

export interface ResponsesRequest extends DialectRequest {
  /** What a later `previous_response_id` goes on from: OpenAI does not carry an earlier response's instructions over. */
  readonly conversation: readonly ChatMessage[];
}

/** OpenAI's `POST /v1/responses` in front of a policy. */
export const responses = {
  name: "responses",
  async parse(text: string, options: InputOptions): Promise<ResponsesRequest> {
    const { body, chat, conversation } = await readResponsesRequest(text, options);
    return {
      chat,
      conversation,
      whole: (answer) => wholeResponse(body, answer),
      stream: (head) => responseStream(body, head),
    };
  },
  errorResponse,
} satisfies Dialect;
