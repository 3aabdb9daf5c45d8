import { DurableObject } from "cloudflare:workers";
import { runMatch, type MatchRequest } from "./match.ts";

/**
 * The SQL evaluator, a Worker of its own: POST `{ setup, query, expected }` → `{ ran, equal, error? }`; 422 where the
 * evaluation itself is at fault (its setup or its expected query fails).
 *
 * The database is a Durable Object's own SQLite: real, without a dependency, and in a transaction that is always rolled
 * back, so that nothing stays and no evaluation sees another's. A query that never ends is ended by the platform's CPU
 * limit; workerd on one machine has none.
 */
export class Database extends DurableObject {
  match(request: MatchRequest): ReturnType<typeof runMatch> {
    return runMatch(this.ctx.storage, request);
  }
}

interface Env {
  readonly DATABASE: DurableObjectNamespace<Database>;
}

export default {
  async fetch(request, env): Promise<Response> {
    if (request.method !== "POST") return Response.json({ error: "POST { setup, query, expected }" }, { status: 405 });
    const body: unknown = await request.json().catch(() => undefined);
    if (!isMatchRequest(body)) {
      return Response.json({ error: "setup, query and expected are wanted as texts" }, { status: 400 });
    }
    const outcome = await env.DATABASE.get(env.DATABASE.idFromName("scratch")).match(body);
    return Response.json(outcome, { status: "ran" in outcome ? 200 : 422 });
  },
} satisfies ExportedHandler<Env>;

function isMatchRequest(body: unknown): body is MatchRequest {
  if (typeof body !== "object" || body === null) return false;
  return ["setup", "query", "expected"].every((name) => typeof Reflect.get(body, name) === "string");
}
