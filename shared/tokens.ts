import {
  SignJWT,
  base64url,
  errors,
  exportJWK,
  generateKeyPair,
  importJWK,
  jwtVerify,
  createLocalJWKSet,
  calculateJwkThumbprint,
  type JWK,
} from "jose";
import * as z from "zod";
import { FulgurError } from "#shared/errors.ts";
import { MODES, SCOPES, type Mode, type Scope } from "#shared/words.ts";
import { capsSchema, type Caps } from "#shared/wire.ts";

/**
 * Signed tokens: EdDSA JWTs that carry tenant, rollout, attempt, scopes and caps, at most 15 minutes long.
 * The edge signs what it mints and verifies everything; the supervisor signs for the parts it starts.
 */

export const ISSUER = "fulgur";
export const AUDIENCE = "fulgur-edge";
export const MAX_TTL_SECONDS = 900;
/** Longer texts are refused before they are parsed. */
export const MAX_TOKEN_BYTES = 4096;

/** Who is calling, as proven by the token; never taken from a body. */
export interface Principal {
  readonly tenantId: string;
  readonly scopes: readonly Scope[];
  readonly jti: string;
  readonly expiresAtSeconds: number;
  /** Set on rollout tokens. */
  readonly rollout?: RolloutClaims;
  /** Set where a long-lived key was shown and not a token; `jti` is then `key:<id>`. */
  readonly keyId?: string;
  /** The one agent that such a key may call for. */
  readonly keyAgent?: string;
}

export interface RolloutClaims {
  readonly rolloutId: string;
  readonly attempt: number;
  readonly agent: string;
  readonly mode: Mode;
  /** `flight@13`: answers come from this version whatever the route says. */
  readonly pin: string | null;
  readonly caps: Caps;
}

const claimsSchema = z.object({
  // One text: a list would do for jose as long as ours is in it.
  aud: z.literal(AUDIENCE),
  sub: z.string().min(1),
  jti: z.string().min(1),
  iat: z.int(),
  exp: z.int(),
  scopes: z.array(z.enum(SCOPES)).min(1),
  rollout: z
    .object({
      id: z.string().min(1),
      attempt: z.int().min(1),
      agent: z.string().min(1),
      mode: z.enum(MODES),
      pin: z.string().nullable(),
      caps: capsSchema,
    })
    .optional(),
});

/** Private keys as a JWKS; the first signs, all verify (rotation: put the new key first, remove the old one later). */
export interface KeySet {
  readonly keys: readonly JWK[];
}

/** A new Ed25519 private key as a JWK with its thumbprint as `kid`. */
export async function newSigningKey(): Promise<JWK> {
  const { privateKey } = await generateKeyPair("EdDSA", { crv: "Ed25519", extractable: true });
  const jwk = await exportJWK(privateKey);
  return { ...jwk, alg: "EdDSA", use: "sig", kid: await calculateJwkThumbprint(jwk) };
}

/** The public half, for `/.well-known/jwks.json`. */
export function publicKeys(keySet: KeySet): { keys: JWK[] } {
  return { keys: keySet.keys.map(({ d: _private, ...open }) => open) };
}

export interface MintOptions {
  readonly tenantId: string;
  readonly scopes: readonly Scope[];
  /** At most {@link MAX_TTL_SECONDS}. */
  readonly ttlSeconds?: number;
  readonly rollout?: RolloutClaims;
  readonly jti?: string;
  /** Milliseconds since the epoch. */
  readonly now?: number;
}

/**
 * Signs a token with the key set's first key.
 * @throws FulgurError ERR_CONFIG when the key set is empty or the lifetime is over 15 minutes
 */
export async function mintToken(
  keySet: KeySet,
  options: MintOptions,
): Promise<{ token: string; expiresAt: number; jti: string }> {
  const {
    tenantId,
    scopes,
    rollout,
    ttlSeconds = MAX_TTL_SECONDS,
    now = Date.now(),
    jti = crypto.randomUUID(),
  } = options;
  const [signing] = keySet.keys;
  if (signing?.kid === undefined)
    throw new FulgurError("ERR_CONFIG", "signing a token needs a private key with a kid; the key set has none");
  if (ttlSeconds > MAX_TTL_SECONDS) {
    throw new FulgurError(
      "ERR_CONFIG",
      `a token lives at most ${MAX_TTL_SECONDS} seconds, ${ttlSeconds} were asked for`,
    );
  }
  const issuedAt = Math.floor(now / 1000);
  const claims = {
    scopes,
    ...(rollout === undefined
      ? {}
      : {
          rollout: {
            id: rollout.rolloutId,
            attempt: rollout.attempt,
            agent: rollout.agent,
            mode: rollout.mode,
            pin: rollout.pin,
            caps: { max_calls: rollout.caps.maxCalls, max_tokens: rollout.caps.maxTokens },
          },
        }),
  };
  const token = await new SignJWT(claims)
    .setProtectedHeader(headerOf(signing.kid))
    .setIssuer(ISSUER)
    .setAudience(AUDIENCE)
    .setSubject(tenantId)
    .setJti(jti)
    .setIssuedAt(issuedAt)
    .setExpirationTime(issuedAt + ttlSeconds)
    .sign(await importJWK(signing, "EdDSA"));
  return { token, expiresAt: (issuedAt + ttlSeconds) * 1000, jti };
}

/** The only header that a key's tokens have. */
function headerOf(kid: string): { alg: string; typ: string; kid: string } {
  return { alg: "EdDSA", typ: "JWT", kid };
}

/** Three parts; the signature is 64 bytes, whose last character has four spare bits that must be zero. */
const TOKEN_FORM = /^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{85}[AQgw]$/;

/**
 * A verifier over the key set's public halves; keep one per key set, keys are imported once. A token has one text: what
 * {@link mintToken} would not have written is refused, however well it is signed.
 */
export function tokenVerifier(keySet: KeySet): (token: string, now?: number) => Promise<Principal> {
  const jwks = createLocalJWKSet(publicKeys(keySet));
  // Compared whole: another algorithm, a key or an address in the header, `crit` and all the rest never reach jose.
  const headers = new Set(keySet.keys.map(({ kid = "" }) => base64url.encode(JSON.stringify(headerOf(kid)))));
  return async (token, now = Date.now()) => {
    const [header = "", claimsPart] = token.split(".", 2);
    if (token.length > MAX_TOKEN_BYTES || !TOKEN_FORM.test(token) || !headers.has(header)) {
      throw unauthorised("it is not a signed token of this system");
    }
    let payload: unknown;
    try {
      const verified = await jwtVerify(token, jwks, {
        algorithms: ["EdDSA"],
        issuer: ISSUER,
        audience: AUDIENCE,
        typ: "JWT",
        requiredClaims: ["sub", "jti", "exp", "iat", "scopes"],
        maxTokenAge: MAX_TTL_SECONDS,
        clockTolerance: 5,
        currentDate: new Date(now),
      });
      payload = verified.payload;
    } catch (cause) {
      throw unauthorised(
        cause instanceof errors.JWTExpired ? "it has expired" : "its signature or claims do not verify",
        cause,
      );
    }
    const claims = claimsSchema.safeParse(payload);
    // Written otherwise, such as with a claim twice, it may be read otherwise elsewhere.
    if (!claims.success || base64url.encode(JSON.stringify(payload)) !== claimsPart) {
      throw unauthorised("its claims are not of the expected form", claims.error);
    }
    const { sub, jti, iat, exp, scopes, rollout } = claims.data;
    if (exp - iat > MAX_TTL_SECONDS) throw unauthorised("it lives longer than a token may");
    return {
      tenantId: sub,
      scopes,
      jti,
      expiresAtSeconds: exp,
      ...(rollout === undefined
        ? {}
        : {
            rollout: {
              rolloutId: rollout.id,
              attempt: rollout.attempt,
              agent: rollout.agent,
              mode: rollout.mode,
              pin: rollout.pin,
              caps: rollout.caps,
            },
          }),
    };
  };
}

function unauthorised(why: string, cause?: unknown): FulgurError {
  return new FulgurError(
    "ERR_AUTH",
    `the key was refused: ${why}; ask for a fresh token (POST /v1/tokens, or npx fulgur token)`,
    { cause },
  );
}
