import type { z } from "zod";
import { messageOf } from "#shared/errors.ts";
import { cannotJudge } from "./contract.ts";

/** An evaluator's answer is a few numbers. */
const MAX_ANSWER_BYTES = 65_536;

/**
 * Posts JSON to an evaluator and reads its JSON answer.
 * @throws FulgurError ERR_INVALID_REQUEST when it does not answer 200 with what the schema wants
 */
export async function askEvaluator<S extends z.ZodType>(
  send: typeof fetch,
  url: string,
  options: { readonly body: unknown; readonly answer: S; readonly signal: AbortSignal },
): Promise<z.output<S>> {
  const { body, answer, signal } = options;
  let parsed: unknown;
  try {
    const response = await send(url, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      // A redirect could lead past the check of the URL.
      redirect: "manual",
      signal,
    });
    if (response.status !== 200) {
      await response.body?.cancel();
      throw cannotJudge(`it answered with status ${response.status}, wanted is 200`);
    }
    parsed = JSON.parse(await textOf(response));
  } catch (cause) {
    throw cannotJudge(`the evaluator's Worker failed: ${messageOf(cause)}`, cause);
  }
  const checked = answer.safeParse(parsed);
  if (checked.success) return checked.data;
  const [issue] = checked.error.issues;
  throw cannotJudge(`the evaluator's answer ${issue?.path.join(".") ?? ""}: ${issue?.message ?? "is not usable"}`);
}

async function textOf(response: Response): Promise<string> {
  if (response.body === null) return "";
  const decoder = new TextDecoder();
  let text = "";
  let bytes = 0;
  for await (const chunk of response.body) {
    bytes += chunk.byteLength;
    if (bytes > MAX_ANSWER_BYTES) throw cannotJudge(`its answer is longer than ${MAX_ANSWER_BYTES} bytes`);
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
}
