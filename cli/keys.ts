import { createPublicKey } from "node:crypto";
import { chmod, link, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { SignJWT, importJWK, type JWK } from "jose";
import { z } from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { newSigningKey, type KeySet } from "#shared/tokens.ts";

/** The keys of one installation: made on the first start, read ever after. */
export interface Keys {
  /** Signs and verifies the tokens of the edge. */
  readonly edge: KeySet;
  readonly store: StoreKeys;
}

export interface StoreKeys {
  /** Public key file for sqld's `--auth-jwt-key-file`. */
  readonly publicKeyPath: string;
  /** May write; only the edge's writer and the migrations hold it. */
  readonly writeToken: string;
  /** `a: "ro"`: reads only. */
  readonly readToken: string;
}

const jwkSchema = z.looseObject({
  kty: z.literal("OKP"),
  crv: z.literal("Ed25519"),
  x: z.string().min(1),
  d: z.string().min(1),
  kid: z.string().min(1),
});
const keySetSchema = z.object({ keys: z.array(jwkSchema).min(1) });

/**
 * Reads the keys in `dir` (`edge.json`, `store.json`, both private JWKS), making those that are missing. The folder is
 * 0700 and the files 0600, whatever they were.
 * @throws FulgurError ERR_CONFIG when a key file is not what it should be, ERR_DISK when the folder cannot be written
 */
export async function ensureKeys(dir: string): Promise<Keys> {
  try {
    await mkdir(dir, { recursive: true, mode: 0o700 });
    await chmod(dir, 0o700);
  } catch (cause) {
    throw new FulgurError(
      "ERR_DISK",
      `the key folder ${dir} could not be made (${messageOf(cause)}); check its owner and the disk`,
      { cause },
    );
  }
  const edge = await ensureKeySet(join(dir, "edge.json"));
  const store = await ensureKeySet(join(dir, "store.json"));
  const [storeKey] = store.keys;
  if (storeKey === undefined) throw new FulgurError("ERR_CONFIG", `${join(dir, "store.json")} holds no key`);
  const publicKeyPath = join(dir, "store-public.pem");
  const { d: _private, ...open } = storeKey;
  const pem = createPublicKey({ format: "jwk", key: open }).export({ type: "spki", format: "pem" });
  await writeFile(publicKeyPath, pem, { mode: 0o600 });
  return {
    edge,
    store: {
      publicKeyPath,
      writeToken: await storeToken(storeKey, "rw"),
      readToken: await storeToken(storeKey, "ro"),
    },
  };
}

/**
 * A token for libSQL. It does not expire, as the server it opens listens on loopback and its key lies beside it.
 * sqld lets a token without the `a` claim write, so both kinds carry it.
 */
async function storeToken(key: JWK, access: "rw" | "ro"): Promise<string> {
  return new SignJWT({ a: access }).setProtectedHeader({ alg: "EdDSA" }).sign(await importJWK(key, "EdDSA"));
}

async function ensureKeySet(path: string): Promise<KeySet> {
  const kept = await readIfThere(path);
  if (kept !== undefined) {
    await chmod(path, 0o600);
    return parse(path, kept);
  }
  // Written aside and linked: two first starts at once end up with one key, and a crash leaves no half file.
  const aside = `${path}.${process.pid}.part`;
  try {
    await writeFile(aside, `${JSON.stringify({ keys: [await newSigningKey()] }, null, 2)}\n`, { mode: 0o600 });
    await link(aside, path);
  } catch (cause) {
    if (!isErrno(cause, "EEXIST")) {
      throw new FulgurError(
        "ERR_DISK",
        `the key file ${path} could not be written (${messageOf(cause)}); check the folder's owner and free space`,
        { cause },
      );
    }
  } finally {
    await rm(aside, { force: true });
  }
  return parse(path, await readFile(path, "utf8"));
}

function parse(path: string, text: string): KeySet {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    value = undefined;
  }
  const parsed = keySetSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  throw new FulgurError(
    "ERR_CONFIG",
    `the key file ${path} is not a set of private Ed25519 keys; put the right one back, or remove it to have a new one made (tokens signed with the old key end then)`,
  );
}

async function readIfThere(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, "utf8");
  } catch (cause) {
    if (isErrno(cause, "ENOENT")) return undefined;
    throw new FulgurError("ERR_CONFIG", `the key file ${path} cannot be read (${messageOf(cause)}); check its owner`, {
      cause,
    });
  }
}

function isErrno(thrown: unknown, code: string): boolean {
  return thrown instanceof Error && "code" in thrown && thrown.code === code;
}
