import { compactVerify, importJWK, type JWK } from "jose";
import { describe, expect, test } from "vitest";
import { mintToken, newSigningKey, tokenVerifier } from "#shared/tokens.ts";
import vectors from "./wycheproof.json" with { type: "json" };

/**
 * Vectors of the Wycheproof project (their source and licence are in the file), on the runtime that the test runs in: its
 * WebCrypto is what verifies tokens. They were signed with their own keys, so jose is asked with those, its algorithm pinned
 * as tokens.ts pins it; the verifier of tokens is asked with ours and must refuse them all.
 */
export function wycheproof(runtime: string): void {
  describe(`Wycheproof's JWS vectors in ${runtime}`, () => {
    const all = vectors.jws.flatMap(({ key, tests }) => tests.map((row) => ({ key, ...read(row) })));

    test("are read as the file says, but for the differences that are explained", async () => {
      const differing = new Map<number, string>();
      for (const { key, id, result, fields } of all) {
        const [jws = ""] = fields;
        const taken = await verifies(jws, key);
        if (taken !== (result === "valid")) differing.set(id, taken ? "taken" : "refused");
      }
      expect([...differing]).toEqual(DIFFERENT.map(({ id, jose }) => [id, jose]));
    });

    test("are tokens for nobody here", async () => {
      const verify = tokenVerifier({ keys: [await newSigningKey()] });
      expect(all.length).toBeGreaterThan(70);
      for (const { fields } of all) {
        await expect(verify(fields[0] ?? "")).rejects.toMatchObject({ code: "ERR_AUTH" });
      }
    });

    const ODD = DIFFERENT.flatMap(({ id, why, ours }) => (ours === undefined ? [] : [{ id, why, ours }]));
    test.each(ODD)("are refused in our own tokens too where jose differs: $id, $why", async ({ ours }) => {
      const signing = await newSigningKey();
      const verify = tokenVerifier({ keys: [signing] });
      const { token } = await mintToken({ keys: [signing] }, { tenantId: "default", scopes: ["read"] });
      expect(await verify(token)).toMatchObject({ tenantId: "default" });
      const [header = "", claims = "", signature = ""] = token.split(".");
      const odd = await ours({ header, claims, signature, sign: (text) => sign(signing, text) });
      expect(odd).not.toBe(token);
      await expect(verify(odd)).rejects.toMatchObject({ code: "ERR_AUTH" });
    });
  });

  test(`Wycheproof's Ed25519 vectors hold in ${runtime}: one message and key have no second signature`, async () => {
    const read25519 = vectors.ed25519.flatMap(({ x, tests }) => tests.map((row) => ({ x, ...read(row) })));
    expect(read25519).toHaveLength(210);
    for (const { x, id, result, fields } of read25519) {
      const [message = "", signature = ""] = fields;
      const key = await crypto.subtle.importKey("jwk", { kty: "OKP", crv: "Ed25519", x }, "Ed25519", false, ["verify"]);
      // workerd throws where the length is wrong.
      const good = await crypto.subtle.verify("Ed25519", key, bytes(signature), bytes(message)).catch(() => false);
      // Acceptable: the public key has a small-order part, which a key that was generated never has; runtimes differ.
      if (result !== "acceptable") expect([id, good]).toEqual([id, result === "valid"]);
    }
  });
}

interface GoodToken {
  readonly header: string;
  readonly claims: string;
  readonly signature: string;
  readonly sign: (text: string) => Promise<string>;
}

interface Difference {
  readonly id: number;
  readonly jose: "taken" | "refused";
  readonly why: string;
  /** The same oddity in a token of ours, well signed; undefined where the vector has none. */
  readonly ours: ((good: GoodToken) => Promise<string> | string) | undefined;
}

const whole = async (input: string, { sign: signed }: GoodToken): Promise<string> => `${input}.${await signed(input)}`;

/** Where jose and the file differ, and that nobody gets in by it: a token of ours has one text (tokens.ts). */
const DIFFERENT: readonly Difference[] = [
  {
    id: 360,
    jose: "taken",
    why: "base64url with spaces before a signature is read by jose",
    ours: ({ header, claims, signature }) => `${header}.${claims}.    ${signature}`,
  },
  {
    id: 365,
    jose: "taken",
    why: "base64url with spaces after a header is read by jose",
    ours: (good) => whole(`${good.header}    .${good.claims}`, good),
  },
  {
    id: 367,
    jose: "taken",
    why: "the file calls 357 invalid here, whose text is the same: its padding was lost",
    ours: undefined,
  },
  {
    id: 368,
    jose: "taken",
    why: "base64url with spaces before a payload is read by jose",
    ours: (good) => whole(`${good.header}.    ${good.claims}`, good),
  },
  {
    id: 370,
    jose: "taken",
    why: "the file calls 357 invalid here, whose text is the same: its padding was lost",
    ours: undefined,
  },
  {
    id: 372,
    jose: "refused",
    why: "the file calls a character of no alphabet valid in a header that the MAC does not cover",
    ours: ({ header, claims, signature }) => `${header.slice(0, -1)}?${header.slice(-1)}.${claims}.${signature}`,
  },
  {
    id: 373,
    jose: "refused",
    why: "the file calls a character of no alphabet valid in a payload that the MAC does not cover",
    ours: ({ header, claims, signature }) => `${header}.${claims}?.${signature}`,
  },
  {
    id: 375,
    jose: "taken",
    why: "a payload whose unused bits are not zero is read by jose, since its MAC covers them",
    ours: (good) => whole(`${good.header}.${withUnusedBits(good.claims)}`, good),
  },
];

/** The same bytes in another text; claims whose length leaves no unused bits are followed by a space first. */
function withUnusedBits(claims: string): string {
  const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const text = claims.length % 4 === 0 ? `${claims}IA` : claims;
  return text.slice(0, -1) + (alphabet[alphabet.indexOf(text.at(-1) ?? "") + 1] ?? "");
}

async function sign(jwk: JWK, text: string): Promise<string> {
  const key = await importJWK(jwk, "EdDSA");
  if (!(key instanceof CryptoKey)) throw new Error("a CryptoKey was wanted");
  const signature = new Uint8Array(await crypto.subtle.sign("Ed25519", key, new TextEncoder().encode(text)));
  return btoa(String.fromCharCode(...signature))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}

type VectorKey = (typeof vectors.jws)[number]["key"];

async function verifies(jws: string, key: VectorKey): Promise<boolean> {
  try {
    const algorithm = "alg" in key ? key.alg : "ES256";
    await compactVerify(jws, await importJWK(key, algorithm), { algorithms: [algorithm] });
    return true;
  } catch {
    return false;
  }
}

interface Vector {
  readonly id: number;
  readonly result: string;
  /** What is verified: a JWS, or a message and its signature. */
  readonly fields: readonly string[];
}

function read(row: string): Vector {
  const [id = "", result = "", , ...fields] = row.split(" | ");
  return { id: Number(id), result, fields };
}

function bytes(hex: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from({ length: hex.length / 2 }, (_, at) => Number.parseInt(hex.slice(at * 2, at * 2 + 2), 16));
}
