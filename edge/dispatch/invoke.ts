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

/** An agent anywhere, asked by its own address in the same way. It must answer itself: a redirect would carry the token away. */
export function agentAt(address: string, send: typeof fetch = fetch): AgentService {
  return {
    async fetch(_url, init) {
      // "manual" and not "error", which workerd does not know.
      const response = await send(address, { ...init, redirect: "manual" });
      if (response.status < 300 || response.status >= 400) return response;
      await response.body?.cancel();
      throw new Error(`it answered with a redirect (${response.status}); give the address that it leads to`);
    },
  };
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
    text = await textUpTo(response, MAX_RESULT_BYTES);
  } catch (thrown) {
    return broken(`the agent failed: ${messageOf(thrown)}`);
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

/** @throws Error before more than so many bytes are in memory: the answer is a stranger's */
async function textUpTo(response: Response, maxBytes: number): Promise<string> {
  if (response.body === null) return "";
  const decoder = new TextDecoder();
  let text = "";
  let bytes = 0;
  for await (const chunk of response.body) {
    bytes += chunk.byteLength;
    if (bytes > maxBytes) throw new Error(`it answered with more than ${maxBytes} bytes, which is all that is kept`);
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
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
