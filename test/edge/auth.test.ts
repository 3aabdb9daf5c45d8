import { exportJWK, generateKeyPair, importJWK, SignJWT, type JWK } from "jose";
import { beforeAll, describe, expect, it } from "vitest";
import { FulgurError } from "#shared/errors.ts";
import { AUDIENCE, ISSUER, mintToken, newSigningKey, type KeySet, type Principal } from "#shared/tokens.ts";
import type { KeyAuth } from "../../edge/key-auth.ts";
import {
  authenticator as authenticatorOf,
  requireOwnerOrScope,
  requireRollout,
  requireScope,
} from "../../edge/auth.ts";

const NOW = Date.UTC(2026, 10, 21, 12);
const SECONDS = Math.floor(NOW / 1000);

let key: JWK;
let keys: KeySet;

beforeAll(async () => {
  key = await newSigningKey();
  keys = { keys: [key] };
});

/** No key is good here: test/edge/key-auth.test.ts has those. */
const NO_KEYS: KeyAuth = {
  authenticate: () => Promise.reject(new FulgurError("ERR_AUTH", "no key is good here")),
  note: () => undefined,
};

function authenticator(keySet: KeySet, keyAuth = NO_KEYS): (request: Request, now: number) => Promise<Principal> {
  const authenticate = authenticatorOf(keySet, keyAuth);
  const dbOf = (): never => {
    throw new Error("a token is proven without the store");
  };
  return (request, now) => authenticate(request, { dbOf, now, later: () => undefined });
}

function withToken(token: string): Request {
  return new Request("http://edge/v1/models", { headers: { authorization: `Bearer ${token}` } });
}

const rollout = {
  rolloutId: "ro_1",
  attempt: 1,
  agent: "flight",
  mode: "train",
  pin: null,
  caps: { maxCalls: 64, maxTokens: 200_000 },
} as const;

/** A token as the edge mints it, changed. */
async function forged(change: {
  readonly header?: Record<string, unknown>;
  readonly claims?: Record<string, unknown>;
  readonly without?: readonly string[];
  readonly signWith?: JWK;
}): Promise<string> {
  const claims: Record<string, unknown> = {
    iss: ISSUER,
    aud: AUDIENCE,
    sub: "default",
    jti: "jti-1",
    iat: SECONDS,
    exp: SECONDS + 900,
    scopes: ["read"],
    ...change.claims,
  };
  for (const name of change.without ?? []) delete claims[name];
  const header = { alg: "EdDSA", typ: "JWT", kid: key.kid ?? "", ...change.header };
  for (const name of change.without ?? []) if (name === "kid" || name === "typ") Reflect.deleteProperty(header, name);
  return new SignJWT(claims).setProtectedHeader(header).sign(await importJWK(change.signWith ?? key, "EdDSA"));
}

const encode = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString("base64url");
const splice = async (change: (parts: [string, string, string]) => string): Promise<string> => {
  const [header = "", payload = "", signature = ""] = (await forged({})).split(".");
  return change([header, payload, signature]);
};

const ODD: readonly [what: string, make: () => Promise<string> | string][] = [
  ["no text", () => ""],
  ["a word", () => "sk-1234"],
  ["two parts", () => splice(([h, p]) => `${h}.${p}`)],
  ["four parts", () => splice(([h, p, s]) => `${h}.${p}.${s}.${s}`)],
  ["alg none without a signature", () => splice(([, p]) => `${encode({ alg: "none", typ: "JWT" })}.${p}.`)],
  [
    "alg none with a signature",
    () => splice(([, p, s]) => `${encode({ alg: "none", typ: "JWT", kid: key.kid })}.${p}.${s}`),
  ],
  [
    "alg HS256 keyed with the public key",
    async () => {
      const secret = Buffer.from(key.x ?? "", "base64url");
      return new SignJWT({ scopes: ["admin"], jti: "x" })
        .setProtectedHeader({ alg: "HS256", typ: "JWT", kid: key.kid ?? "" })
        .setIssuer(ISSUER)
        .setAudience(AUDIENCE)
        .setSubject("default")
        .setIssuedAt(SECONDS)
        .setExpirationTime(SECONDS + 900)
        .sign(secret);
    },
  ],
  [
    "another alg in the header",
    () => splice(([, p, s]) => `${encode({ alg: "ES256", typ: "JWT", kid: key.kid })}.${p}.${s}`),
  ],
  ["no kid", () => forged({ without: ["kid"] })],
  ["an unknown kid", () => forged({ header: { kid: "other" } })],
  ["a kid that is no text", () => splice(([, p, s]) => `${encode({ alg: "EdDSA", typ: "JWT", kid: 1 })}.${p}.${s}`)],
  ["no typ", () => forged({ without: ["typ"] })],
  ["another typ", () => forged({ header: { typ: "at+jwt" } })],
  [
    "a critical header that nobody knows",
    () => splice(([, p, s]) => `${encode({ alg: "EdDSA", typ: "JWT", kid: key.kid, crit: ["x"], x: 1 })}.${p}.${s}`),
  ],
  [
    "a key of its own in the header",
    async () => {
      const { privateKey, publicKey } = await generateKeyPair("EdDSA", { crv: "Ed25519", extractable: true });
      const own = await exportJWK(privateKey);
      return forged({ header: { jwk: await exportJWK(publicKey), kid: "own" }, signWith: { ...own, alg: "EdDSA" } });
    },
  ],
  ["a foreign key under our kid", async () => forged({ signWith: await newSigningKey() })],
  ["another issuer", () => forged({ claims: { iss: "someone" } })],
  ["no issuer", () => forged({ without: ["iss"] })],
  ["another audience", () => forged({ claims: { aud: "fulgur-other" } })],
  ["no audience", () => forged({ without: ["aud"] })],
  ["no subject", () => forged({ without: ["sub"] })],
  ["an empty subject", () => forged({ claims: { sub: "" } })],
  ["no jti", () => forged({ without: ["jti"] })],
  ["no expiry", () => forged({ without: ["exp"] })],
  ["an expiry that is no number", () => forged({ claims: { exp: "never" } })],
  ["expired a minute ago", () => forged({ claims: { iat: SECONDS - 120, exp: SECONDS - 60 } })],
  ["issued in the future", () => forged({ claims: { iat: SECONDS + 600, exp: SECONDS + 900 } })],
  ["not valid yet", () => forged({ claims: { nbf: SECONDS + 600 } })],
  ["issued an hour ago for two hours", () => forged({ claims: { iat: SECONDS - 3600, exp: SECONDS + 3600 } })],
  ["no issue time", () => forged({ without: ["iat"] })],
  ["no scopes", () => forged({ without: ["scopes"] })],
  ["an empty list of scopes", () => forged({ claims: { scopes: [] } })],
  ["an unknown scope", () => forged({ claims: { scopes: ["root"] } })],
  ["scopes as text", () => forged({ claims: { scopes: "admin" } })],
  [
    "a rollout without an attempt",
    () => forged({ claims: { rollout: { id: "ro_1", agent: "flight", mode: "train", pin: null, caps: {} } } }),
  ],
  ["a padded signature", () => splice(([h, p, s]) => `${h}.${p}.${s}=`)],
  [
    "a signature in plain base64",
    () => splice(([h, p, s]) => `${h}.${p}.${s.replaceAll("-", "+").replaceAll("_", "/")}+/`),
  ],
  ["white space in the payload", () => splice(([h, p, s]) => `${h}.${p.slice(0, 5)}\t${p.slice(5)}.${s}`)],
  [
    "a payload changed after signing",
    () =>
      splice(
        ([h, , s]) =>
          `${h}.${encode({ sub: "other", scopes: ["admin"], jti: "x", iss: ISSUER, aud: AUDIENCE, iat: SECONDS, exp: SECONDS + 900 })}.${s}`,
      ),
  ],
  ["a cut signature", () => splice(([h, p, s]) => `${h}.${p}.${s.slice(0, -4)}`)],
  ["over 4 KB", () => forged({ claims: { pad: "x".repeat(5000) } })],
];

describe("authenticator", () => {
  it.each(ODD)("refuses a token: %s", async (_what, make) => {
    const authenticate = authenticator(keys);
    await expect(authenticate(withToken(await make()), NOW)).rejects.toMatchObject({ code: "ERR_AUTH" });
  });

  it("accepts the unchanged token that the odd ones are made from", async () => {
    expect(await authenticator(keys)(withToken(await forged({})), NOW)).toMatchObject({
      tenantId: "default",
      scopes: ["read"],
    });
  });

  it("hands a key on, from either header, and no token", async () => {
    const seen: string[] = [];
    const principal: Principal = { tenantId: "t1", scopes: ["agent"], jti: "key:1", expiresAtSeconds: 1, keyId: "1" };
    const authenticate = authenticator(keys, {
      ...NO_KEYS,
      authenticate: (key) => {
        seen.push(key);
        return Promise.resolve(principal);
      },
    });
    expect(await authenticate(withToken("fk_1_secret"), NOW)).toBe(principal);
    expect(await authenticate(new Request("http://edge/", { headers: { "x-api-key": "fk_2_secret" } }), NOW)).toBe(
      principal,
    );
    await authenticate(withToken(await forged({})), NOW);
    expect(seen).toEqual(["fk_1_secret", "fk_2_secret"]);
  });

  it("reads a rollout's token from Authorization and from x-api-key alike", async () => {
    const { token } = await mintToken(keys, { tenantId: "t1", scopes: ["call"], rollout, now: NOW });
    const authenticate = authenticator(keys);
    const bearer = await authenticate(withToken(token), NOW);
    const apiKey = await authenticate(new Request("http://edge/", { headers: { "x-api-key": token } }), NOW);
    expect(bearer.rollout).toEqual(rollout);
    expect(apiKey).toEqual(bearer);
  });

  it("stops accepting a token that it has seen once its time is over", async () => {
    const { token } = await mintToken(keys, { tenantId: "t1", scopes: ["read"], ttlSeconds: 60, now: NOW });
    const authenticate = authenticator(keys);
    await expect(authenticate(withToken(token), NOW)).resolves.toMatchObject({ tenantId: "t1" });
    await expect(authenticate(withToken(token), NOW + 70_000)).rejects.toMatchObject({ code: "ERR_AUTH" });
  });

  it("verifies with an older key while a newer one signs", async () => {
    const { token } = await mintToken(keys, { tenantId: "t1", scopes: ["read"], now: NOW });
    const rotated = authenticator({ keys: [await newSigningKey(), key] });
    await expect(rotated(withToken(token), NOW)).resolves.toMatchObject({ tenantId: "t1" });
    const removed = authenticator({ keys: [await newSigningKey()] });
    await expect(removed(withToken(token), NOW)).rejects.toMatchObject({ code: "ERR_AUTH" });
  });

  it.each([
    ["no header", {}],
    ["another scheme", { authorization: "Basic eHg6eHg=" }],
    ["a scheme alone", { authorization: "Bearer" }],
    ["two words", { authorization: "Bearer a b" }],
    ["an empty x-api-key", { "x-api-key": "" }],
  ])("refuses a request with %s", async (_what, headers) => {
    await expect(authenticator(keys)(new Request("http://edge/", { headers }), NOW)).rejects.toMatchObject({
      code: "ERR_AUTH",
    });
  });

  it("never tells the token in its message", async () => {
    const token = await forged({ claims: { aud: "other" } });
    const refusal: unknown = await authenticator(keys)(withToken(token), NOW).catch((thrown: unknown) => thrown);
    expect(String(refusal)).not.toContain(token.slice(0, 20));
  });
});

describe("scopes", () => {
  const reader = { tenantId: "t", scopes: ["read"], jti: "j", expiresAtSeconds: SECONDS } as const;
  const admin = { ...reader, scopes: ["admin"] } as const;
  const own = { ...reader, scopes: ["call"], rollout } as const;

  it("lets admin do everything and others only what they may", () => {
    expect(() => requireScope(admin, "trainer")).not.toThrow();
    expect(() => requireScope(reader, "read")).not.toThrow();
    expect(() => requireScope(reader, "trainer")).toThrow("scope trainer");
  });

  it("lets a rollout's token at its own rollout and no other", () => {
    expect(() => requireOwnerOrScope(own, "ro_1", "trainer")).not.toThrow();
    expect(() => requireOwnerOrScope(own, "ro_2", "trainer")).toThrow("scope trainer");
  });

  it("makes LLM calls only for a rollout", () => {
    expect(requireRollout(own)).toEqual(rollout);
    expect(() => requireRollout(admin)).toThrow("rollout's token");
    expect(() => requireRollout({ ...own, scopes: ["read"] })).toThrow("rollout's token");
  });
});
