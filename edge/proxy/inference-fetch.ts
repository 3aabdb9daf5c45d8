import { mintToken } from "#shared/tokens.ts";
import { fetchBy, type EdgeConfig, type Env } from "../config.ts";

/** A token that has less than this left gives way to another: requests that wait at inference keep their time. */
const RENEW_BEFORE_MS = 300_000;
/** Whom the token names: the edge itself, for inference knows no tenants. */
const SUBJECT = "edge";

type Keys = Pick<EdgeConfig, "signingKeys" | "inferenceKey">;

interface Signed {
  readonly token: string;
  /** Milliseconds since the epoch. */
  readonly expiresAt: number;
}

// Tokens and not promises of them: workerd cancels a request that waits on what another one resolves.
const signed = new WeakMap<Keys, Signed>();

/**
 * `fetch` to the inference endpoint, with the static key that was configured for it or else a token of scope `inference`
 * that the edge signs itself and keeps for ten minutes.
 */
export function inferenceFetch({ INFERENCE }: Pick<Env, "INFERENCE">, keys: Keys, now: () => number): typeof fetch {
  const send = fetchBy(INFERENCE);
  return async (input, init) => {
    const headers = new Headers(init?.headers);
    headers.set("authorization", `Bearer ${keys.inferenceKey ?? (await ownToken(keys, now()))}`);
    return send(input, { ...init, headers });
  };
}

async function ownToken(keys: Keys, now: number): Promise<string> {
  const known = signed.get(keys);
  if (known !== undefined && known.expiresAt - now > RENEW_BEFORE_MS) return known.token;
  const fresh = await mintToken(keys.signingKeys, { tenantId: SUBJECT, scopes: ["inference"], now });
  signed.set(keys, fresh);
  return fresh.token;
}
