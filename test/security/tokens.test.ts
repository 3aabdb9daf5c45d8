import {
  createHmac,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  sign as signBytes,
  type KeyObject,
} from "node:crypto";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { putTenant } from "#shared/store/tenants.ts";
import { newSigningKey } from "#shared/tokens.ts";
import { startTestEdge, type TestEdge } from "../support/edge.ts";
import { ask, chat, HEALTHY, healthOf, expectOf, expectRefusal, raw, statusesOf, type Answered } from "./support.ts";

/**
 * Forged and odd tokens against real routes. The classes are those of the published JWS vector sets (Wycheproof's among
 * them); the vectors are made here with node:crypto, so that each is about this system's own keys and claims and is sure to
 * differ from a good token in that one thing.
 */

type Json = Readonly<Record<string, unknown>>;

let edge: TestEdge;
let ours: KeyObject;
let kid: string;
let strangers: KeyObject;
let strangersJwk: Json;
/** Where `jku` and `x5u` lead; it must never be asked. */
let listener: Server;
let listenerUrl: string;
let fetched = 0;

beforeAll(async () => {
  edge = await startTestEdge();
  const [signing] = edge.keys.keys;
  if (signing?.kid === undefined) throw new Error("the edge has no signing key");
  kid = signing.kid;
  ours = createPrivateKey({ key: { ...signing }, format: "jwk" });
  const other = await newSigningKey();
  strangers = createPrivateKey({ key: { ...other }, format: "jwk" });
  const { d: _private, ...open } = other;
  strangersJwk = open;
  listener = createServer((_request, response) => {
    fetched++;
    response.end(JSON.stringify({ keys: [strangersJwk] }));
  });
  await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
  listenerUrl = `http://127.0.0.1:${(listener.address() as AddressInfo).port}/keys.json`;
});
afterAll(async () => {
  listener.close();
  await edge.stop();
});

const encoded = (value: string | Uint8Array): string => Buffer.from(value).toString("base64url");
const goodHeader = (): Json => ({ alg: "EdDSA", typ: "JWT", kid });
const seconds = (): number => Math.floor(Date.now() / 1000);

/** Claims that every route here takes: of an admin, or of a rollout that may call. */
let nextToken = 0;
function goodClaims(more: Json = {}): Json {
  const iat = seconds();
  const jti = `security-${nextToken++}`;
  return { scopes: ["admin"], iss: "fulgur", aud: "fulgur-edge", sub: "default", jti, iat, exp: iat + 600, ...more };
}

interface Odd {
  /** As an object, or its very text. */
  readonly header?: Json | string;
  readonly claims?: Json | string;
  readonly signature?: (input: string) => string;
}

function made({ header = goodHeader(), claims = goodClaims(), signature = signed(ours) }: Odd = {}): string {
  const text = (part: Json | string): string => encoded(typeof part === "string" ? part : JSON.stringify(part));
  const input = `${text(header)}.${text(claims)}`;
  return `${input}.${signature(input)}`;
}

function signed(key: KeyObject, algorithm: string | null = null): (input: string) => string {
  return (input) => encoded(signBytes(algorithm, Buffer.from(input), key));
}

function without(name: string): Json {
  return Object.fromEntries(Object.entries(goodClaims()).filter(([key]) => key !== name));
}

const hmac =
  (secret: string | Uint8Array, hash = "sha256") =>
  (input: string): string =>
    createHmac(hash, secret).update(input).digest("base64url");

/** Changes what a good token's signature is made into. */
const resigned = (change: (signature: Buffer) => Uint8Array): string => {
  const token = made();
  const dot = token.lastIndexOf(".");
  return `${token.slice(0, dot)}.${encoded(change(Buffer.from(token.slice(dot + 1), "base64url")))}`;
};

/** Adds the group's order to S: verifies wherever S is not checked to be small. */
function addOrder(signature: Buffer): Buffer {
  const order = 2n ** 252n + 27742317777372353535851937790883648493n;
  const changed = Buffer.from(signature);
  let s = order + BigInt(`0x${Buffer.from(signature.subarray(32)).reverse().toString("hex")}`);
  for (let at = 32; at < 64; at++, s >>= 8n) changed[at] = Number(s & 255n);
  return changed;
}

const open = (): KeyObject => createPublicKey(ours);
const rsa = generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey;
const p256 = generateKeyPairSync("ec", { namedCurve: "P-256" }).privateKey;
const ed448 = generateKeyPairSync("ed448").privateKey;

/** Name → the token; each is made when it is needed, so that its times are of now. */
const FORGED: Readonly<Record<string, () => string>> = {
  "alg none, no signature": () => made({ header: { ...goodHeader(), alg: "none" }, signature: () => "" }),
  "alg none, a good signature": () => made({ header: { ...goodHeader(), alg: "none" } }),
  "alg NonE": () => made({ header: { ...goodHeader(), alg: "NonE" }, signature: () => "" }),
  "alg missing": () => made({ header: { typ: "JWT", kid } }),
  "alg null": () => made({ header: { ...goodHeader(), alg: null } }),
  "alg in lower case": () => made({ header: { ...goodHeader(), alg: "eddsa" } }),
  "alg a list": () => made({ header: { ...goodHeader(), alg: ["EdDSA"] } }),
  "alg a number": () => made({ header: { ...goodHeader(), alg: 1 } }),
  "alg by its other name": () => made({ header: { ...goodHeader(), alg: "Ed25519" } }),
  "HS256 with the raw public key": () => {
    const { x } = open().export({ format: "jwk" });
    return made({ header: { ...goodHeader(), alg: "HS256" }, signature: hmac(Buffer.from(x ?? "", "base64url")) });
  },
  "HS256 with the public key's DER": () =>
    made({
      header: { ...goodHeader(), alg: "HS256" },
      signature: hmac(open().export({ type: "spki", format: "der" })),
    }),
  "HS256 with the public key's PEM": () =>
    made({
      header: { ...goodHeader(), alg: "HS256" },
      signature: hmac(open().export({ type: "spki", format: "pem" })),
    }),
  "HS512 with the public key's JWK": () =>
    made({
      header: { ...goodHeader(), alg: "HS512" },
      signature: hmac(JSON.stringify(open().export({ format: "jwk" })), "sha512"),
    }),
  "HS256 with no secret": () => made({ header: { ...goodHeader(), alg: "HS256" }, signature: hmac("") }),
  "HMAC under the name EdDSA": () => made({ signature: hmac(open().export({ type: "spki", format: "der" })) }),
  "RS256 with a stranger's key": () =>
    made({ header: { ...goodHeader(), alg: "RS256" }, signature: signed(rsa, "sha256") }),
  "RSA under the name EdDSA": () => made({ signature: signed(rsa, "sha256") }),
  "ES256 with a stranger's key": () =>
    made({ header: { ...goodHeader(), alg: "ES256" }, signature: signed(p256, "sha256") }),
  "ES256 with r = s = 0": () =>
    made({ header: { ...goodHeader(), alg: "ES256" }, signature: () => encoded(new Uint8Array(64)) }),
  "Ed448 under the name EdDSA": () => made({ signature: signed(ed448) }),
  "a stranger's key under our kid": () => made({ signature: signed(strangers) }),
  "a stranger's key under its own kid": () =>
    made({ header: { ...goodHeader(), kid: strangersJwk["kid"] }, signature: signed(strangers) }),
  "an embedded jwk": () =>
    made({
      header: { ...goodHeader(), kid: strangersJwk["kid"], jwk: strangersJwk },
      signature: signed(strangers),
    }),
  "an embedded jwk under our kid": () =>
    made({ header: { ...goodHeader(), jwk: strangersJwk }, signature: signed(strangers) }),
  "an embedded jwk beside a good signature": () => made({ header: { ...goodHeader(), jwk: strangersJwk } }),
  "a jku": () =>
    made({
      header: { ...goodHeader(), kid: strangersJwk["kid"], jku: listenerUrl },
      signature: signed(strangers),
    }),
  "an x5u": () => made({ header: { ...goodHeader(), x5u: listenerUrl }, signature: signed(strangers) }),
  "a jku beside a good signature": () => made({ header: { ...goodHeader(), jku: listenerUrl } }),
  "an x5c": () =>
    made({
      header: {
        ...goodHeader(),
        x5c: [createPublicKey(rsa).export({ type: "spki", format: "der" }).toString("base64")],
      },
      signature: signed(rsa, "sha256"),
    }),
  "kid missing": () => made({ header: { alg: "EdDSA", typ: "JWT" } }),
  "kid empty": () => made({ header: { ...goodHeader(), kid: "" } }),
  "kid null": () => made({ header: { ...goodHeader(), kid: null } }),
  "kid a path": () => made({ header: { ...goodHeader(), kid: "../../../../dev/null" }, signature: hmac("") }),
  "kid SQL": () => made({ header: { ...goodHeader(), kid: `${kid}' or '1'='1` } }),
  "kid a union": () => made({ header: { ...goodHeader(), kid: "x' union select 'key' --" }, signature: hmac("key") }),
  "kid a list": () => made({ header: { ...goodHeader(), kid: [kid] } }),
  "kid an object": () => made({ header: { ...goodHeader(), kid: { kid } } }),
  "kid a number": () => made({ header: { ...goodHeader(), kid: 0 } }),
  "kid with a NUL": () => made({ header: { ...goodHeader(), kid: `${kid}\u0000` } }),
  "kid __proto__": () => made({ header: { ...goodHeader(), kid: "__proto__" }, signature: signed(strangers) }),
  "kid constructor": () => made({ header: { ...goodHeader(), kid: "constructor" }, signature: signed(strangers) }),
  "crit unknown": () => made({ header: { ...goodHeader(), crit: ["nonsense"], nonsense: true } }),
  "crit empty": () => made({ header: { ...goodHeader(), crit: [] } }),
  "crit names exp": () => made({ header: { ...goodHeader(), crit: ["exp"], exp: 1 } }),
  "crit a text": () => made({ header: { ...goodHeader(), crit: "exp" } }),
  "b64 false in crit, payload as it is": () => {
    const header = encoded(JSON.stringify({ ...goodHeader(), b64: false, crit: ["b64"] }));
    const payload = encoded(JSON.stringify(goodClaims()));
    return `${header}.${payload}.${signed(ours)(`${header}.${Buffer.from(payload, "base64url").toString()}`)}`;
  },
  "b64 false in crit": () => made({ header: { ...goodHeader(), b64: false, crit: ["b64"] } }),
  "b64 false without crit": () => made({ header: { ...goodHeader(), b64: false } }),
  "typ missing": () => made({ header: { alg: "EdDSA", kid } }),
  "typ of an access token": () => made({ header: { ...goodHeader(), typ: "at+jwt" } }),
  "typ JOSE": () => made({ header: { ...goodHeader(), typ: "JOSE" } }),
  "cty nested": () => made({ header: { ...goodHeader(), cty: "JWT" }, claims: JSON.stringify(made()) }),
  zip: () => made({ header: { ...goodHeader(), zip: "DEF" } }),
  "header twice alg": () => made({ header: `{"alg":"none","alg":"EdDSA","typ":"JWT","kid":${JSON.stringify(kid)}}` }),
  "header not JSON": () => made({ header: "{alg:EdDSA}" }),
  "header a list": () => made({ header: "[]" }),
  "header null": () => made({ header: "null" }),
  "header a deep list": () => made({ header: `${"[".repeat(500)}${"]".repeat(500)}` }),

  "signature stripped": () => `${made().split(".").slice(0, 2).join(".")}.`,
  "signature and its dot stripped": () => made().split(".").slice(0, 2).join("."),
  "signature cut": () => resigned((signature) => signature.subarray(0, 63)),
  "signature with a byte more": () => resigned((signature) => Buffer.concat([signature, Buffer.alloc(1)])),
  "signature of zeros": () => resigned(() => new Uint8Array(64)),
  "signature with one bit flipped": () =>
    resigned((signature) => signature.map((byte, at) => (at === 10 ? byte ^ 1 : byte))),
  "signature with S + L": () => resigned(addOrder),
  "signature of another token": () => {
    const [header, payload] = made().split(".");
    return `${header}.${payload}.${made().split(".")[2]}`;
  },
  "payload of another token": () => {
    const [header, , signature] = made({ claims: goodClaims({ scopes: ["read"] }) }).split(".");
    return `${header}.${made().split(".")[1]}.${signature}`;
  },
  "signature with other spare bits": () => {
    // 64 bytes leave four bits of the last character that decoders pass over.
    const token = made();
    const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    return token.slice(0, -1) + (alphabet[alphabet.indexOf(token.at(-1) ?? "") + 1] ?? "");
  },
  padding: () => `${made()}==`,
  "a dot more": () => `${made()}.`,
  "five parts": () => `${made()}.${encoded("a")}.${encoded("b")}`,
  "detached payload": () => {
    const [header, , signature] = made().split(".");
    return `${header}..${signature}`;
  },
  "the alphabet of plain base64": () => {
    for (;;) {
      const token = made();
      const plain = token.replaceAll("-", "+").replaceAll("_", "/");
      if (plain !== token) return plain;
    }
  },
  "flattened JSON": () => {
    const [header, payload, signature] = made().split(".");
    return JSON.stringify({ protected: header, payload, signature }).replaceAll(" ", "");
  },
  "payload not JSON": () => made({ claims: "scopes=admin" }),
  "payload a list": () => made({ claims: JSON.stringify([goodClaims()]) }),
  "payload with a claim twice": () =>
    made({
      claims: JSON.stringify(goodClaims({ scopes: undefined })).replace("{", '{"scopes":["call"],"scopes":["admin"],'),
    }),
  "payload with spaces": () => made({ claims: JSON.stringify(goodClaims(), null, 1) }),
  "payload null": () => made({ claims: "null" }),
  "payload with a byte order mark": () => made({ claims: `\u{FEFF}${JSON.stringify(goodClaims())}` }),

  "iss wrong": () => made({ claims: goodClaims({ iss: "fulgur2" }) }),
  "iss missing": () => made({ claims: without("iss") }),
  "iss a list": () => made({ claims: goodClaims({ iss: ["fulgur"] }) }),
  "aud wrong": () => made({ claims: goodClaims({ aud: "fulgur-inference" }) }),
  "aud missing": () => made({ claims: without("aud") }),
  "aud a list with ours in it": () => made({ claims: goodClaims({ aud: ["elsewhere", "fulgur-edge"] }) }),
  "aud a list of ours": () => made({ claims: goodClaims({ aud: ["fulgur-edge"] }) }),
  "aud an object": () => made({ claims: goodClaims({ aud: { "fulgur-edge": true } }) }),
  "exp long past": () => made({ claims: goodClaims({ iat: seconds() - 800, exp: seconds() - 200 }) }),
  "exp past the tolerance": () => made({ claims: goodClaims({ iat: seconds() - 60, exp: seconds() - 7 }) }),
  "exp missing": () => made({ claims: without("exp") }),
  "exp null": () => made({ claims: goodClaims({ exp: null }) }),
  "exp a text": () => made({ claims: goodClaims({ exp: String(seconds() + 60) }) }),
  "exp a fraction": () => made({ claims: goodClaims({ exp: seconds() + 60.5 }) }),
  "exp endless": () => made({ claims: JSON.stringify(goodClaims()).replace(/"exp":\d+/, '"exp":1e999') }),
  "exp huge": () => made({ claims: goodClaims({ exp: 1e15 }) }),
  "exp negative": () => made({ claims: goodClaims({ exp: -1 }) }),
  "iat missing": () => made({ claims: without("iat") }),
  "iat a text": () => made({ claims: goodClaims({ iat: String(seconds()) }) }),
  "iat in the future": () => made({ claims: goodClaims({ iat: seconds() + 60 }) }),
  "iat too long ago": () => made({ claims: goodClaims({ iat: seconds() - 920 }) }),
  "a life of an hour": () => made({ claims: goodClaims({ exp: seconds() + 3600 }) }),
  "a life of a second too much": () => {
    const iat = seconds();
    return made({ claims: goodClaims({ iat, exp: iat + 901 }) });
  },
  "nbf in the future": () => made({ claims: goodClaims({ nbf: seconds() + 60 }) }),
  "nbf a text": () => made({ claims: goodClaims({ nbf: "0" }) }),
  "sub missing": () => made({ claims: without("sub") }),
  "sub empty": () => made({ claims: goodClaims({ sub: "" }) }),
  "sub a list": () => made({ claims: goodClaims({ sub: ["default"] }) }),
  "sub an object": () => made({ claims: goodClaims({ sub: { toString: "default" } }) }),
  "jti missing": () => made({ claims: without("jti") }),
  "jti empty": () => made({ claims: goodClaims({ jti: "" }) }),
  "jti a list": () => made({ claims: goodClaims({ jti: ["a"] }) }),
  "scopes missing": () => made({ claims: without("scopes") }),
  "scopes a text": () => made({ claims: goodClaims({ scopes: "admin" }) }),
  "scopes none": () => made({ claims: goodClaims({ scopes: [] }) }),
  "scopes unknown": () => made({ claims: goodClaims({ scopes: ["admin", "root"] }) }),
  "scopes an object": () => made({ claims: goodClaims({ scopes: { 0: "admin", length: 1 } }) }),
  "rollout half": () => made({ claims: goodClaims({ rollout: { id: "ro_1" } }) }),
  "rollout with boundless caps": () =>
    made({
      claims: goodClaims({
        rollout: { id: "ro_1", attempt: 1, agent: "flight", mode: "live", pin: null, caps: { max_calls: 1e9 } },
      }),
    }),
  "rollout with a text for its attempt": () =>
    made({
      claims: goodClaims({ rollout: { id: "ro_1", attempt: "1", agent: "flight", mode: "live", pin: null, caps: {} } }),
    }),
  "all claims of a prototype": () => made({ claims: `{"__proto__":${JSON.stringify(goodClaims())}}` }),
  "scopes of a prototype": () =>
    made({ claims: JSON.stringify(without("scopes")).replace("{", '{"__proto__":{"scopes":["admin"]},') }),
  "scopes of a constructor": () =>
    made({ claims: goodClaims({ scopes: undefined, constructor: { prototype: { scopes: ["admin"] } } }) }),
  "a long one": () => made({ claims: goodClaims({ padding: "x".repeat(4096) }) }),
  "a very long one": () => "x".repeat(60_000),
  "empty parts": () => "..",
  "nothing but letters": () => "token",
  "text of two lines": () => encodeURIComponent("a\nb"),
};

describe("a forged or odd token", () => {
  test.each(Object.entries(FORGED))("is refused: %s", async (_name, forge) => {
    const good = await ask(edge, "GET /v1/policies", { token: made() });
    expect([good.status, good.text.includes("flight")]).toEqual([200, true]);
    const token = forge();
    for (const answer of await Promise.all([
      ask(edge, "GET /v1/policies", { token }),
      ask(edge, "POST /v1/tokens", { token, body: { scopes: ["admin"] } }),
      chat(edge, token),
      ask(edge, "GET /v1/policies", { headers: { "x-api-key": token } }),
    ])) {
      expectUnauthorised(answer, token);
    }
    expect(fetched).toBe(0);
  });

  test("leaves the edge as it was", async () => {
    expect(await healthOf(edge)).toEqual(HEALTHY);
    expect(fetched).toBe(0);
  });
});

/** All that a forger is told. */
const TOLD = [
  /^the key was refused: (it is not a signed token of this system|its signature or claims do not verify|it has expired|its claims are not of the expected form|it lives longer than a token may); ask for a fresh token/,
  /^this route needs a (token|key)/,
  /^the key was refused: it is unknown or was revoked/,
];

function expectUnauthorised(answer: Answered, token: string): void {
  expectRefusal(answer, 401);
  expect(answer.headers.get("www-authenticate")).toBe("Bearer");
  const { error } = JSON.parse(answer.text) as { error: { message: string; code: string } };
  expect(error.code).toBe("ERR_AUTH");
  expectOf(
    TOLD.some((told) => told.test(error.message)),
    error.message,
  ).toBe(true);
  if (token.length > 8) expect(answer.text).not.toContain(token);
}

describe("the clock's edges", () => {
  test("a token that has just expired, or comes from a clock that is just ahead, still passes; beyond five seconds not", async () => {
    for (const [claims, status] of [
      [{ iat: seconds() - 60, exp: seconds() - 2 }, 200],
      [{ iat: seconds() - 60, exp: seconds() - 8 }, 401],
      [{ iat: seconds() + 3 }, 200],
      [{ iat: seconds() + 12 }, 401],
      [{ nbf: seconds() + 3 }, 200],
      [{ nbf: seconds() + 12 }, 401],
      [{ nbf: seconds() - 5 }, 200],
    ] as const) {
      const { iat, ...rest }: { iat?: number; exp?: number; nbf?: number } = claims;
      const times = iat === undefined ? rest : { iat, exp: iat + 600, ...rest };
      const answer = await ask(edge, "GET /v1/policies", { token: made({ claims: goodClaims(times) }) });
      expect([claims, answer.status]).toEqual([claims, status]);
    }
  });

  test("an answer that is remembered is not remembered past the token's end", async () => {
    // Ends within the tolerance and is then asked again, from the isolate's memory.
    const exp = seconds() - 4;
    const token = made({ claims: goodClaims({ iat: exp - 60, exp }) });
    expect((await ask(edge, "GET /v1/policies", { token })).status).toBe(200);
    await until(exp + 6);
    expectUnauthorised(await ask(edge, "GET /v1/policies", { token }), token);
  });
});

/** Waits for a time of the clock, which is what the test is about. */
async function until(second: number): Promise<void> {
  while (seconds() < second) await new Promise((resolve) => setTimeout(resolve, 50));
}

describe("where a token is looked for", () => {
  test("neither a query, a cookie nor another scheme will do, and a bad one is not made good by a second", async () => {
    const token = made();
    const bad = made({ signature: signed(strangers) });
    expect((await ask(edge, "GET /v1/policies", { token })).status).toBe(200);
    for (const [path, headers] of [
      [`/v1/policies?access_token=${token}`, {}],
      [`/v1/policies?token=${token}`, {}],
      ["/v1/policies", { cookie: `token=${token}; authorization=${token}` }],
      ["/v1/policies", { authorization: `Basic ${Buffer.from(`user:${token}`).toString("base64")}` }],
      ["/v1/policies", { authorization: token }],
      ["/v1/policies", { authorization: `Bearer  ${token}` }],
      ["/v1/policies", { authorization: `Bearer ${token} ${token}` }],
      ["/v1/policies", { authorization: `Bearer ${bad}`, "x-api-key": token }],
      ["/v1/policies", { authorization: "", "x-api-key": bad }],
      ["/v1/policies", { "proxy-authorization": `Bearer ${token}` }],
      ["/v1/policies", { "x-forwarded-user": "admin", "x-real-ip": "127.0.0.1", "x-original-url": "/healthz" }],
    ] as const) {
      expectRefusal(await ask(edge, `GET ${path}`, { headers }), 401);
    }
    const head = `GET /v1/policies HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n`;
    const twice = await raw(edge, `${head}authorization: Bearer ${bad}\r\nauthorization: Bearer ${token}\r\n\r\n`);
    expect(statusesOf(twice)).not.toContain(200);
  });
});

describe("revocation", () => {
  const body = { model: "any", messages: [{ role: "user", content: "hi" }] };

  test("of a jti ends that token on every route", async () => {
    const { token } = await edge.rollout("live");
    const other = await edge.rollout("live");
    expect((await ask(edge, "POST /v1/chat/completions", { token, body })).status).toBe(200);
    const { jti, exp } = JSON.parse(Buffer.from(token.split(".")[1] ?? "", "base64url").toString()) as {
      jti: string;
      exp: number;
    };
    const revoked = await ask(edge, "POST /v1/tokens/revoke", {
      token: made(),
      body: { jti, expires_at: exp * 1000 },
    });
    expect([revoked.status, revoked.text]).toEqual([200, '{"ok":true}']);
    await expect
      .poll(async () => (await ask(edge, "POST /v1/chat/completions", { token, body })).status, { timeout: 4000 })
      .toBe(401);
    expectRefusal(await ask(edge, "GET /v1/models", { token }), 401);
    expectRefusal(await ask(edge, "POST /v1/rewards", { token, body: { name: "x", value: 1 } }), 401);
    expect((await ask(edge, "POST /v1/chat/completions", { token: other.token, body })).status).toBe(200);
  });

  test("of a rollout ends every token of it, one that is minted later too", async () => {
    const { id, token } = await edge.rollout("live");
    expect((await ask(edge, "POST /v1/chat/completions", { token, body })).status).toBe(200);
    const revoked = await ask(edge, "POST /v1/tokens/revoke", { token: made(), body: { rollout_id: id } });
    expect([revoked.status, revoked.text]).toEqual([200, '{"ok":true}']);
    const rollout = {
      id,
      attempt: 1,
      agent: "flight",
      mode: "live",
      pin: null,
      caps: { max_calls: 64, max_tokens: 200_000 },
    };
    const another = made({ claims: goodClaims({ scopes: ["call"], rollout }) });
    for (const each of [token, another]) {
      await expect
        .poll(async () => (await ask(edge, "POST /v1/chat/completions", { token: each, body })).status, {
          timeout: 4000,
        })
        .toBe(401);
      expectRefusal(await ask(edge, "GET /v1/models", { token: each }), 401);
    }
  });
});

describe("a long-lived key", () => {
  interface KeyGrant {
    readonly id: string;
    readonly key: string;
  }
  async function create(token: string, scope: string): Promise<KeyGrant> {
    const { status, text } = await ask(edge, "POST /v1/keys", { token, body: { scope } });
    expectOf(status, text).toBe(200);
    return JSON.parse(text) as KeyGrant;
  }

  test("works as it is and in no other form", async () => {
    const { id, key } = await create(made(), "read");
    expect((await ask(edge, "GET /v1/policies", { token: key })).status).toBe(200);
    const secret = key.slice(-43);
    for (const odd of [
      key.slice(0, -1),
      `${key}A`,
      `fk_${id}_${secret.split("").reverse().join("")}`,
      `fk_${id}_${"A".repeat(43)}`,
      `fk_${id}_`,
      `fk_${id}`,
      `fk__${secret}`,
      `fk_${id.toUpperCase()}_${secret}`.replace(id, id.toUpperCase()),
      `fk_${"0".repeat(16)}_${secret}`,
      `FK_${id}_${secret}`,
      `fk_${id}_${secret}=`,
      `fk_${id}' or '1'='1_${secret}`,
      `fk_${id}%00_${secret}`,
      `fk_../../${id}_${secret}`,
      `fk_${id}_${"x".repeat(5000)}`,
      `fk_${encoded(id)}_${secret}`,
    ].filter((form) => form !== key)) {
      expectUnauthorised(await ask(edge, "GET /v1/policies", { token: odd }), odd);
      expectUnauthorised(await chat(edge, odd), odd);
    }
  });

  test("does what its scope says, for its own tenant", async () => {
    await edge.store.writer.append([
      putTenant({ id: "neighbour", name: "Neighbour", settings: { fail_open: false }, createdAt: 1 }),
    ]);
    const { id } = await edge.rollout("live");
    const read = (await create(made(), "read")).key;
    expect((await ask(edge, `GET /v1/rollouts/${id}`, { token: read })).status).toBe(200);
    expectRefusal(await ask(edge, "POST /v1/keys", { token: read, body: { scope: "admin" } }), 403);
    expectRefusal(await ask(edge, "POST /v1/tokens", { token: read, body: { scopes: ["read"] } }), 403);
    expectRefusal(await chat(edge, read), 403);
    const foreign = (await create(made({ claims: goodClaims({ sub: "neighbour" }) }), "admin")).key;
    expect((await ask(edge, "GET /v1/keys", { token: foreign })).status).toBe(200);
    expectRefusal(await ask(edge, `GET /v1/rollouts/${id}`, { token: foreign }), 404);
    // Nor does a neighbour's admin end it.
    const keyId = read.slice(3, 19);
    expectRefusal(await ask(edge, `POST /v1/keys/${keyId}/revoke`, { token: foreign, body: {} }), 404);
    expect((await ask(edge, "GET /v1/policies", { token: read })).status).toBe(200);
  });

  test("is over when it is revoked", async () => {
    const { id, key } = await create(made(), "trainer");
    expect((await ask(edge, "GET /v1/policies", { token: key })).status).toBe(200);
    expect((await ask(edge, `POST /v1/keys/${id}/revoke`, { token: made(), body: {} })).status).toBe(200);
    await expect
      .poll(async () => (await ask(edge, "GET /v1/policies", { token: key })).status, { timeout: 4000 })
      .toBe(401);
    expectUnauthorised(await chat(edge, key), key);
  });
});
