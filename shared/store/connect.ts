import { createClient, type Client, type InStatement } from "@libsql/client/web";
import { FulgurError, messageOf } from "#shared/errors.ts";
import type { LibSQLDatabase } from "drizzle-orm/libsql";
import { drizzle } from "drizzle-orm/libsql/web";

/** What reads take. Built by {@link connectStore}; the same in workerd and in Node. */
export type StoreDb = LibSQLDatabase;

export interface StoreOptions {
  /** `http://127.0.0.1:8789`, or a Turso URL. */
  readonly url: string;
  /** A token with `a: "ro"` for readers; only the writer holds one that may write. */
  readonly token: string;
  /** Of one HTTP request. A stopped server takes connections and never answers, so there is always a limit. */
  readonly timeoutMs?: number;
  readonly fetch?: typeof fetch;
}

/**
 * A connection to libSQL over HTTP. It holds no socket; in a Worker make one per request, because a client kept across
 * requests stays broken once one of its requests was cancelled.
 */
export function connectStore(options: StoreOptions): StoreDb {
  const client = storeClient(options);
  const execute = client.execute.bind(client);
  // All that drizzle's reads call. Half a surrogate pair has no UTF-8, and the server fails on it: no row has it, see encoded.ts.
  client.execute = (statement: InStatement) => execute(wellFormed(statement));
  return drizzle(client);
}

function wellFormed(statement: InStatement): InStatement {
  if (typeof statement === "string" || !Array.isArray(statement.args)) return statement;
  const args = statement.args.map((value) => (typeof value === "string" ? value.toWellFormed() : value));
  return { ...statement, args };
}

/**
 * The bare libSQL client under {@link connectStore}, for batches and migrations. It throws FulgurError ERR_STORE where the
 * server is not to be reached or out of order; drizzle has that as its own error's cause.
 */
export function storeClient({ url, token, timeoutMs = 10_000, fetch: send = fetch }: StoreOptions): Client {
  return createClient({
    url,
    authToken: token,
    intMode: "number",
    fetch: async (request: Request | string, init?: RequestInit): Promise<Response> => {
      let response: Response;
      try {
        response = await send(request, { ...init, signal: AbortSignal.timeout(timeoutMs) });
      } catch (cause) {
        throw new FulgurError("ERR_STORE", `the store did not answer within ${timeoutMs} ms: ${messageOf(cause)}`, {
          cause,
        });
      }
      if (response.status < 500 && response.status !== 429) return response;
      await response.body?.cancel();
      throw new FulgurError("ERR_STORE", `the store answered ${response.status}; try again in a second`);
    },
  });
}
