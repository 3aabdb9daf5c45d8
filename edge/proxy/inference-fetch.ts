import { inferenceClient, type InferenceServerClient } from "#shared/inference-client.ts";
import { mintToken } from "#shared/tokens.ts";
import { EDGE_SUBJECT } from "#shared/words.ts";
import { inferenceWay, type EdgeConfig } from "../config.ts";

/** A token that has less than this left gives way to another: requests that wait at inference keep their time. */
const RENEW_BEFORE_MS = 300_000;

type Keys = Pick<EdgeConfig, "signingKeys" | "inferenceKey" | "inferenceUrls">;

interface Signed {
  readonly token: string;
  /** Milliseconds since the epoch. */
  readonly expiresAt: number;
}

// Tokens and not promises of them: workerd cancels a request that waits on what another one resolves.
const signed = new WeakMap<Keys, Signed>();

/**
 * `fetch` to the inference servers, with the static key that was configured for it or else a token of scope `inference`
 * that the edge signs itself and keeps for ten minutes.
 */
export function inferenceFetch(env: object, keys: Keys, now: () => number): typeof fetch {
  const send = inferenceWay(env, keys);
  return async (input, init) => {
    const headers = new Headers(init?.headers);
    headers.set("authorization", `Bearer ${keys.inferenceKey ?? (await ownToken(keys, now()))}`);
    return send(input, { ...init, headers });
  };
}

/** A server's other side: to look at it, and to have it load versions, with the static key or a token made for it. */
export function inferenceAdmin(env: object, keys: Keys, now: () => number): (url: string) => InferenceServerClient {
  return (baseUrl) =>
    inferenceClient({
      baseUrl,
      fetch: inferenceWay(env, keys),
      key: async () =>
        keys.inferenceKey ??
        (await mintToken(keys.signingKeys, { tenantId: EDGE_SUBJECT, scopes: ["trainer"], ttlSeconds: 60, now: now() }))
          .token,
    });
}

async function ownToken(keys: Keys, now: number): Promise<string> {
  const known = signed.get(keys);
  if (known !== undefined && known.expiresAt - now > RENEW_BEFORE_MS) return known.token;
  const fresh = await mintToken(keys.signingKeys, { tenantId: EDGE_SUBJECT, scopes: ["inference"], now });
  signed.set(keys, fresh);
  return fresh.token;
}
