import { z } from "zod";
import { messageOf } from "#shared/errors.ts";
import type { Json } from "#shared/tables.ts";
import type { BreakReason } from "../record/finish.ts";

/** One run of an agent, as it is asked for over a service binding. */
export interface AgentRequest {
  readonly input: Json;
  /** The rollout's token: the agent's LLM key. */
  readonly token: string;
  /** The agent's LLM base URL, `…/v1`. */
  readonly llmBaseUrl: string;
}

/** What came of it. Whatever is not a result is a broken attempt: infrastructure, not an outcome. */
export type AgentAnswer =
  | { readonly type: "answered"; readonly result: string | null }
  | { readonly type: "broken"; readonly error: string; readonly reason: BreakReason };

/** What can be asked like a Worker behind a service binding. */
export interface AgentService {
  fetch(url: string, init: RequestInit): Promise<Response>;
}

/** Larger results are refused: the store takes a row of 5 MB at most. */
const MAX_RESULT_BYTES = 1_000_000;

const resultSchema = z.object({ result: z.string().nullable() });
const refusalSchema = z.object({
  error: z.object({ message: z.string(), reason: z.enum(["upstream_failed", "agent_failed"]).catch("agent_failed") }),
});

/**
 * Asks an agent for one run (`POST /run`); see agents/wrapper.ts for the other side. Never throws.
 * @param signal ends the waiting; the caller says why
 */
export async function askAgent(
  service: AgentService,
  { input, token, llmBaseUrl }: AgentRequest,
  signal: AbortSignal,
): Promise<AgentAnswer> {
  let text: string;
  let response: Response;
  try {
    // The host is never resolved: a service binding leads to its Worker whatever the URL says.
    response = await service.fetch("http://agent.internal/run", {
      method: "POST",
      headers: {
        "content-type": "application/json",
        authorization: `Bearer ${token}`,
        "x-llm-base-url": llmBaseUrl,
      },
      body: JSON.stringify({ input }),
      signal,
    });
    text = await response.text();
  } catch (thrown) {
    return broken(`the agent's Worker failed: ${messageOf(thrown)}`);
  }
  if (text.length > MAX_RESULT_BYTES) {
    return broken(`the agent answered with ${text.length} characters; at most ${MAX_RESULT_BYTES} are kept`);
  }
  const body = parsed(text);
  const answer = resultSchema.safeParse(body);
  if (response.ok && answer.success) return { type: "answered", result: answer.data.result };
  const refusal = refusalSchema.safeParse(body);
  if (!response.ok && refusal.success) {
    return { type: "broken", error: refusal.data.error.message, reason: refusal.data.error.reason };
  }
  return broken(`the agent answered ${response.status} without {"result": text}: ${text.slice(0, 200)}`);
}

function broken(error: string): AgentAnswer {
  return { type: "broken", error, reason: "agent_failed" };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
