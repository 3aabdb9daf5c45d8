import { FulgurError } from "#shared/errors.ts";
import { KEY_PREFIX } from "#shared/keys.ts";
import { MAX_TOKEN_BYTES, tokenVerifier, type KeySet, type Principal, type RolloutClaims } from "#shared/tokens.ts";
import type { Scope } from "#shared/words.ts";
import type { KeyAuth, KeyAuthRequest } from "./key-auth.ts";
import { TtlCache } from "./ttl-cache.ts";

/** Who is calling: the request's token, verified once and remembered until it expires, or its long-lived key. */
export type Authenticate = (request: Request, context: KeyAuthRequest) => Promise<Principal>;

/**
 * An authenticator over one key set and the store's keys. OpenAI's SDKs send `Authorization: Bearer`, Anthropic's `x-api-key`.
 * It throws FulgurError ERR_AUTH, and for keys what {@link KeyAuth} throws. A token's revocation is not looked at here: see
 * revocations.ts.
 */
export function authenticator(keySet: KeySet, keys: KeyAuth): Authenticate {
  const verify = tokenVerifier(keySet);
  // Verifying costs up to 0.15 ms of the one thread that an isolate has; a rollout's calls share one token.
  const verified = new TtlCache<Principal>({ ttlMs: 900_000, maxEntries: 4096 });
  return async (request, context) => {
    const token = tokenOf(request.headers);
    if (token.startsWith(KEY_PREFIX)) return keys.authenticate(token, context);
    const { now } = context;
    const known = verified.get(token, now);
    if (known !== undefined) return known;
    const principal = await verify(token, now);
    verified.set(token, principal, now, principal.expiresAtSeconds * 1000);
    return principal;
  };
}

function tokenOf(headers: Headers): string {
  const authorization = headers.get("authorization");
  const [scheme, bearer, ...more] = authorization?.split(" ") ?? [];
  const token =
    authorization === null
      ? headers.get("x-api-key")
      : scheme?.toLowerCase() === "bearer" && more.length === 0
        ? bearer
        : undefined;
  if (token === undefined || token === null || token === "" || token.length > MAX_TOKEN_BYTES) {
    throw new FulgurError(
      "ERR_AUTH",
      "this route needs a token or a key: send it as Authorization: Bearer <token> (npx fulgur token, or npx fulgur keys create)",
    );
  }
  return token;
}

/** `admin` may do everything. @throws FulgurError ERR_FORBIDDEN */
export function requireScope(principal: Principal, scope: Scope): void {
  if (hasScope(principal, scope)) return;
  throw new FulgurError(
    "ERR_FORBIDDEN",
    `this route needs a token with scope ${scope}; this one has ${principal.scopes.join(", ")}`,
  );
}

/** The token's own rollout. @throws FulgurError ERR_FORBIDDEN when it is not a rollout's token with scope `call` */
export function requireRollout(principal: Principal): RolloutClaims {
  if (principal.rollout !== undefined && principal.scopes.includes("call")) return principal.rollout;
  throw new FulgurError(
    "ERR_FORBIDDEN",
    "LLM calls need a rollout's token with scope call (POST /v1/tokens with agent and mode, or npx fulgur token)",
  );
}

/**
 * For routes open to a rollout's own token and to a scope.
 * @throws FulgurError ERR_FORBIDDEN when the token is neither; a foreign rollout's token is told no more than that
 */
export function requireOwnerOrScope(principal: Principal, rolloutId: string, scope: Scope): void {
  if (principal.rollout?.rolloutId === rolloutId && principal.scopes.includes("call")) return;
  requireScope(principal, scope);
}

function hasScope(principal: Principal, scope: Scope): boolean {
  return principal.scopes.includes(scope) || principal.scopes.includes("admin");
}
