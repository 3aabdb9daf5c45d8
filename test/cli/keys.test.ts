import { mkdtemp, readFile, rm, stat, writeFile, chmod } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { decodeJwt } from "jose";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { mintToken, tokenVerifier } from "#shared/tokens.ts";
import { ensureKeys, rotateSigningKey } from "../../cli/keys.ts";

describe("ensureKeys", () => {
  let dir: string;
  beforeEach(async () => {
    dir = join(await mkdtemp(join(tmpdir(), "fulgur-keys-")), "keys");
  });
  afterEach(() => rm(join(dir, ".."), { recursive: true, force: true }));

  const modeOf = async (path: string): Promise<string> => ((await stat(path)).mode & 0o777).toString(8);

  it("makes private keys that only their owner can read, and gives the same ones ever after", async () => {
    const first = await ensureKeys(dir);
    expect(await modeOf(dir)).toBe("700");
    for (const file of ["edge.json", "store.json", "store-public.pem", "vault.key"])
      expect(await modeOf(join(dir, file))).toBe("600");
    await chmod(join(dir, "edge.json"), 0o644);
    expect(await ensureKeys(dir)).toMatchObject({ edge: first.edge });
    expect(await modeOf(join(dir, "edge.json"))).toBe("600");
    const { token } = await mintToken(first.edge, { tenantId: "default", scopes: ["read"] });
    expect(await tokenVerifier((await ensureKeys(dir)).edge)(token)).toMatchObject({ tenantId: "default" });
  });

  it("tells a reading store token from a writing one, and keeps the private key out of the public file", async () => {
    const { store } = await ensureKeys(dir);
    expect(decodeJwt(store.readToken)).toEqual({ a: "ro" });
    expect(decodeJwt(store.writeToken)).toEqual({ a: "rw" });
    expect(await readFile(store.publicKeyPath, "utf8")).toMatch(
      /^-----BEGIN PUBLIC KEY-----\n[^-]+-----END PUBLIC KEY-----\n$/,
    );
  });

  it("ends up with one key when two first starts race", async () => {
    const both = await Promise.all([ensureKeys(dir), ensureKeys(dir)]);
    expect(both[0].edge).toEqual(both[1].edge);
    expect(await ensureKeys(dir)).toMatchObject({ edge: both[0].edge });
  });

  it.each(["{", "{}", '{"keys":[]}', '{"keys":[{"kty":"OKP","crv":"Ed25519","x":"public-half-only","kid":"1"}]}'])(
    "refuses a key file that holds %s, and leaves it as it is",
    async (text) => {
      await ensureKeys(dir);
      await writeFile(join(dir, "edge.json"), text);
      await expect(ensureKeys(dir)).rejects.toMatchObject({ code: "ERR_CONFIG" });
      expect(await readFile(join(dir, "edge.json"), "utf8")).toBe(text);
    },
  );
});

describe("rotateSigningKey", () => {
  let dir: string;
  beforeEach(async () => {
    dir = join(await mkdtemp(join(tmpdir(), "fulgur-keys-")), "keys");
  });
  afterEach(() => rm(join(dir, ".."), { recursive: true, force: true }));

  it("signs with a new key and verifies with the one before until its tokens have expired", async () => {
    const before = await ensureKeys(dir);
    const { token } = await mintToken(before.edge, { tenantId: "default", scopes: ["read"] });
    const kid = await rotateSigningKey(dir);
    const after = await ensureKeys(dir);
    expect(after.edge.keys.map((key) => key.kid)).toEqual([kid, before.edge.keys[0]?.kid]);
    expect(JSON.stringify(after.edge)).not.toContain("retired_at");
    expect(await tokenVerifier(after.edge)(token)).toMatchObject({ tenantId: "default" });
    expect(after.vaultKey).toBe(before.vaultKey);
    expect((await stat(join(dir, "edge.json"))).mode & 0o777).toBe(0o600);
  });

  it("drops a key that was retired longer ago than any token lives", async () => {
    const before = await ensureKeys(dir);
    const kid = await rotateSigningKey(dir, Date.now() - 20 * 60_000);
    expect((await ensureKeys(dir)).edge.keys.map((key) => key.kid)).toEqual([kid]);
    const next = await rotateSigningKey(dir);
    const { keys } = JSON.parse(await readFile(join(dir, "edge.json"), "utf8")) as { keys: { kid: string }[] };
    expect(keys.map((key) => key.kid)).toEqual([next, kid]);
    expect(keys.map((key) => key.kid)).not.toContain(before.edge.keys[0]?.kid);
  });

  it("needs keys to rotate", async () => {
    await expect(rotateSigningKey(dir)).rejects.toMatchObject({ code: "ERR_CONFIG" });
  });
});
