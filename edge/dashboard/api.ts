import { edgeClient } from "#shared/client.ts";

/** The page's client: a read token from the edge's own session route, fetched again a minute before it expires. */

let session: { token: string; expiresAt: number } | undefined;

async function token(): Promise<string> {
  if (session === undefined || session.expiresAt - Date.now() < 60_000) {
    const response = await fetch("/v1/session");
    if (!response.ok) {
      throw new Error("this edge gives no session to the page; it does so on loopback only, with LOCAL_SESSION=1");
    }
    const body: { token: string; expires_at: number } = await response.json();
    session = { token: body.token, expiresAt: body.expires_at };
  }
  return session.token;
}

export const api = edgeClient({ baseUrl: "", token, fetch: (input, init) => fetch(input, init) });
