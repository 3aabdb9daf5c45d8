/**
 * Who may ask the endpoint: bearer tokens signed by one of the edge's keys, with the scope that the route wants.
 * The keys are read when they are first needed and again when a token names one that is not known (rotation). A token is
 * verified once and remembered until it expires; revocation is the edge's: nobody but it and the trainers has such a token.
 */

import { readFile } from "node:fs/promises";
import * as z from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { type KeySet, type Principal, tokenVerifier } from "#shared/tokens.ts";
import { DEFAULT_TENANT, EDGE_SUBJECT, parseServedName, type Scope } from "#shared/words.ts";

/** Checks the caller of a request. */
export interface TokenGate {
  /**
   * @param authorization the request's header
   * @param scopes one of them is needed; `admin` always does
   * @returns whom the token names
   * @throws FulgurError ERR_AUTH without a valid token, ERR_FORBIDDEN when it lacks the scope, ERR_STORE while the keys
   * cannot be read
   */
  check(authorization: string | undefined, scopes: readonly Scope[]): Promise<Principal>;
}

/**
 * Whether a caller may speak of a version: the edge of all, a tenant of its own. A tenant's admin may have tokens that pass
 * the gate, and what has no tenant in its name is the default one's.
 */
export function mayName({ tenantId }: Pick<Principal, "tenantId">, name: string): boolean {
  return tenantId === EDGE_SUBJECT || tenantId === (parseServedName(name)?.tenantId ?? DEFAULT_TENANT);
}

/** The rim: how keys are fetched and what time it is. */
export interface TokenGateOptions {
  readonly fetch?: typeof fetch;
  readonly nowMs?: () => number;
}

/** A token with an unknown key asks for the keys again at most this often. */
const REREAD_MS = 10_000;
const FETCH_TIMEOUT_MS = 5000;
/** Tokens that are remembered: the edge's isolates each have one, the trainers two. */
const MAX_VERIFIED = 1024;
const jwksSchema = z.object({ keys: z.array(z.looseObject({ kty: z.literal("OKP"), kid: z.string() })).min(1) });

/**
 * Makes a gate.
 * @param source a JWKS as a file or an `http(s)://` address; an address need not answer yet
 * @throws FulgurError ERR_CONFIG when the file holds no keys
 */
export async function openTokenGate(source: string, options: TokenGateOptions = {}): Promise<TokenGate> {
  const { nowMs = Date.now } = options;
  const fetchKeys = options.fetch ?? fetch;
  const isUrl = /^https?:\/\//.test(source);
  let known: { readonly kids: ReadonlySet<string>; readonly verify: ReturnType<typeof tokenVerifier> } | null = null;
  /** By token, the oldest first. */
  const verified = new Map<string, Principal>();
  /** Requests that find no keys at the same time read them once. */
  let reading: Promise<void> | null = null;
  let readAtMs = -Infinity;

  const read = async (): Promise<void> => {
    readAtMs = nowMs();
    const text = isUrl ? await fetchText(source, fetchKeys) : await readFile(source, "utf8");
    const keySet: KeySet = jwksSchema.parse(JSON.parse(text));
    known = { kids: new Set(keySet.keys.map(({ kid = "" }) => kid)), verify: tokenVerifier(keySet) };
    // One of them may be of a key that is gone.
    verified.clear();
  };
  const principalOf = async (token: string): Promise<Principal> => {
    const remembered = verified.get(token);
    if (remembered !== undefined && nowMs() < remembered.expiresAtSeconds * 1000) return remembered;
    verified.delete(token);
    const kid = kidOf(token);
    const mayRead = reading !== null || nowMs() - readAtMs >= REREAD_MS;
    if (known === null || (mayRead && kid !== null && !known.kids.has(kid))) {
      reading ??= read().finally(() => {
        reading = null;
      });
      await reading.catch((cause: unknown) => {
        // Keys that were read before go on to count.
        if (known !== null) return;
        throw new FulgurError("ERR_STORE", `The keys at ${source} cannot be read now; try again soon.`, { cause });
      });
    }
    if (known === null) throw new FulgurError("ERR_INTERNAL", "There are no keys");
    const principal = await known.verify(token, nowMs());
    verified.set(token, principal);
    if (verified.size > MAX_VERIFIED) for (const oldest of verified.keys().take(1)) verified.delete(oldest);
    return principal;
  };
  if (!isUrl) {
    await read().catch((cause: unknown) => {
      throw new FulgurError(
        "ERR_CONFIG",
        `--jwks: ${source} holds no public keys (${messageOf(cause)}); give the edge's /.well-known/jwks.json or a copy.`,
        { cause },
      );
    });
  }
  return {
    async check(authorization, scopes) {
      const token = /^Bearer +(\S+)$/i.exec(authorization ?? "")?.[1];
      if (token === undefined) {
        throw new FulgurError("ERR_AUTH", "A bearer token is needed: the edge sends one that it signed itself.");
      }
      const principal = await principalOf(token);
      if (principal.scopes.includes("admin") || scopes.some((scope) => principal.scopes.includes(scope))) {
        return principal;
      }
      throw new FulgurError("ERR_FORBIDDEN", `The token has not the scope that this needs (${scopes.join(" or ")}).`);
    },
  };
}

async function fetchText(url: string, fetchKeys: typeof fetch): Promise<string> {
  const response = await fetchKeys(url, { redirect: "error", signal: AbortSignal.timeout(FETCH_TIMEOUT_MS) });
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response.text();
}

/** The key that a token says it was signed with; nothing else of its header is looked at. */
function kidOf(token: string): string | null {
  try {
    const header: unknown = JSON.parse(Buffer.from(token.split(".", 1)[0] ?? "", "base64url").toString("utf8"));
    return z.object({ kid: z.string() }).parse(header).kid;
  } catch {
    return null;
  }
}
