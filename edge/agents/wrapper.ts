/**
 * What stands between the outside and an agent that knows nothing of it: `POST /run {"input": …}` runs the agent once,
 * with the request's key and base URL in the environment variables that every LLM SDK reads.
 * Answers `{"result": …}`, or `{"error": {"message", "reason"}}`: 502 `upstream_failed` where an LLM call failed in a
 * way that another try may mend, 500 `agent_failed` where the agent broke.
 */

/** The environment that an agent sees: its Worker's own bindings, and these. */
export interface LlmEnvironment {
  readonly OPENAI_BASE_URL: string;
  readonly OPENAI_API_KEY: string;
  /** The agents SDKs of OpenAI otherwise send their traces, with the key, to a fixed address of the vendor's. */
  readonly OPENAI_AGENTS_DISABLE_TRACING: "1";
}

/** An agent: its input as the task has it, to the text that it ends with. */
export type Agent<E extends object> = (input: unknown, env: E & LlmEnvironment) => Promise<string>;

/** The Worker of an agent. */
export function agentWorker<E extends object>(agent: Agent<E>): { fetch(request: Request, env: E): Promise<Response> } {
  return {
    async fetch(request, env) {
      const { pathname } = new URL(request.url);
      if (request.method !== "POST" || pathname !== "/run") {
        return refusal(404, "agent_failed", `an agent answers POST /run, not ${request.method} ${pathname}`);
      }
      const key = /^Bearer (\S+)$/i.exec(request.headers.get("authorization") ?? "")?.[1];
      const baseUrl = request.headers.get("x-llm-base-url");
      if (key === undefined || baseUrl === null) {
        return refusal(400, "agent_failed", "a run needs the headers authorization: Bearer <key> and x-llm-base-url");
      }
      try {
        const body: unknown = await request.json();
        const input: unknown = typeof body === "object" && body !== null ? Reflect.get(body, "input") : undefined;
        const result = await agent(input, {
          ...env,
          OPENAI_BASE_URL: baseUrl,
          OPENAI_API_KEY: key,
          OPENAI_AGENTS_DISABLE_TRACING: "1",
        });
        return Response.json({ result });
      } catch (thrown) {
        const message = thrown instanceof Error ? `${thrown.name}: ${thrown.message}` : String(thrown);
        return isUpstreamFailure(thrown)
          ? refusal(502, "upstream_failed", message)
          : refusal(500, "agent_failed", message);
      }
    },
  };
}

function refusal(status: number, reason: string, message: string): Response {
  return Response.json({ error: { message, reason } }, { status });
}

/**
 * SDKs differ in their error classes and agree in what these carry: an HTTP `status`, or a name or cause that tells of
 * the connection. A 4xx other than these is the agent's own doing.
 */
function isUpstreamFailure(thrown: unknown): boolean {
  if (typeof thrown !== "object" || thrown === null) return false;
  const status: unknown = Reflect.get(thrown, "status") ?? Reflect.get(thrown, "statusCode");
  if (typeof status === "number") return status >= 500 || status === 408 || status === 429;
  const connection = /connection|timeout|network/i;
  return connection.test(thrown.constructor.name) || (thrown instanceof Error && connection.test(thrown.name));
}
