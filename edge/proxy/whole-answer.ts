import { firstChoice, isObject, parseObject, type Json } from "./answer.ts";
import { broken, checkModel, newToolCallId } from "./call.ts";
import { wholeToolCalls, type Capture } from "./capture.ts";

/** Inference's answers that come in one piece. */

/**
 * Reads a whole chat answer for the record.
 * @returns its choice
 * @throws UpstreamError where it is not whole, or another model answered
 */
export function takeWhole(capture: Capture, answer: Json): Json {
  const choice = firstChoice(answer);
  const message = wholeMessage(choice?.["message"]);
  capture.takeAnswer(answer, message);
  checkModel(capture);
  if (choice === undefined) throw broken(capture, "its answer has no choice");
  if (capture.finishReason === null) throw broken(capture, "its answer has no finish_reason");
  if (message["tool_calls"] !== undefined && capture.finishReason === "stop") capture.finishReason = "tool_calls";
  return choice;
}

/** @throws Error where an answer is not a JSON object: the connection broke in it */
export async function readAnswer(response: Response): Promise<Json> {
  const answer = parseObject(await response.text());
  if (answer === undefined) throw new Error("its answer is not a JSON object");
  return answer;
}

/** The assistant's message made whole: role, content and, where it calls tools, calls with unique ids. */
function wholeMessage(given: unknown): Json {
  const message = isObject(given) ? given : {};
  const { tool_calls: called, content, role: _role, token_ids: _ids, ...rest } = message;
  const toolCalls = wholeToolCalls(called, newToolCallId);
  return {
    role: "assistant",
    content: typeof content === "string" ? content : null,
    ...Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== null)),
    ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
  };
}
