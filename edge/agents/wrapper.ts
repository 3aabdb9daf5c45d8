import { createRemoteJWKSet, errors, jwtVerify } from "jose";

/**
 * What stands between the outside and an agent that knows nothing of it: `POST /run {"input": …}` runs the agent once,
 * with the request's key and base URL in the environment variables that every LLM SDK reads.
 * Answers `{"result": …}`, or `{"error": {"message", "reason"}}`: 502 `upstream_failed` where an LLM call failed in a
 * way that another try may mend, 500 `agent_failed` where the agent broke, 401 where somebody else than its edge asked.
 *
 * Where the Worker's variable EDGE_URL is set, only rollout tokens that this edge has signed are taken, and only this edge
 * is called. A Worker that has an address of its own wants that; one that is reached over a service binding alone has no
 * other callers.
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
      const edgeUrl: unknown = Reflect.get(env, "EDGE_URL");
      if (typeof edgeUrl === "string" && edgeUrl !== "") {
        const refused = await refusedBy(edgeUrl, { key, baseUrl });
        if (refused !== undefined) return refused;
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

/** By edge; each fetches the keys when it first needs them, and again when a token names one that it does not know. */
const keySets = new Map<string, ReturnType<typeof createRemoteJWKSet>>();

/** The answer to a run that the edge did not ask for; undefined where it did. */
async function refusedBy(
  edgeUrl: string,
  { key, baseUrl }: { readonly key: string; readonly baseUrl: string },
): Promise<Response | undefined> {
  const { origin } = new URL(edgeUrl);
  // Whoever names another address would be sent what the agent knows.
  if (!URL.canParse(baseUrl) || new URL(baseUrl).origin !== origin) {
    return refusal(401, "agent_failed", `this agent calls ${origin} alone; x-llm-base-url names another address`);
  }
  let keys = keySets.get(origin);
  if (keys === undefined) {
    // A key that the edge has just begun to sign with is asked for soon.
    keys = createRemoteJWKSet(new URL("/.well-known/jwks.json", origin), { cooldownDuration: 1000 });
    keySets.set(origin, keys);
  }
  try {
    await jwtVerify(key, keys, {
      algorithms: ["EdDSA"],
      issuer: "fulgur",
      audience: "fulgur-edge",
      typ: "JWT",
      requiredClaims: ["sub", "jti", "iat", "exp", "rollout"],
      clockTolerance: 5,
    });
    return undefined;
  } catch (thrown) {
    const code = thrown instanceof errors.JOSEError ? thrown.code : "";
    return REFUSED.test(code)
      ? refusal(401, "agent_failed", `the key is not a valid token of a rollout of ${origin} (${code})`)
      : refusal(502, "upstream_failed", `the public keys of ${origin} cannot be had: ${String(thrown)}`);
  }
}

/** What jose says of a token; anything else is about fetching the keys. */
const REFUSED = /^ERR_(JWT_|JWS_|JOSE_ALG_|JOSE_NOT_SUPPORTED|JWKS_NO_MATCHING_KEY|JWKS_MULTIPLE_MATCHING_KEYS)/;

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
