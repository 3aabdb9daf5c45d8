import { createPublicKey, randomBytes, randomUUID } from "node:crypto";
import { chmod, link, mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { SignJWT, importJWK, type JWK } from "jose";
import { z } from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { MAX_TTL_SECONDS, newSigningKey, type KeySet } from "#shared/tokens.ts";

/** The keys of one installation: made on the first start, read ever after. */
export interface Keys {
  /** Signs and verifies the tokens of the edge. */
  readonly edge: KeySet;
  readonly store: StoreKeys;
  /** 32 bytes in base64url; the edge seals the providers' keys with it. */
  readonly vaultKey: string;
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
  /** When another key took its place, milliseconds since the epoch; it still verifies for a while. */
  retired_at: z.number().optional(),
});
const keySetSchema = z.object({ keys: z.array(jwkSchema).min(1) });
type StoredKeySet = z.infer<typeof keySetSchema>;

/** A retired signing key is dropped when the last token that it signed has expired, with time for clocks that differ. */
const RETIRED_MS = (MAX_TTL_SECONDS + 60) * 1000;

/**
 * Reads the keys in `dir` (`edge.json` and `store.json`, private JWKS, and `vault.key`), making those that are missing. The folder is
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
  const edge = signingKeys(living(await ensureKeySet(join(dir, "edge.json")), Date.now()));
  const store = await ensureKeySet(join(dir, "store.json"));
  const [storeKey] = store.keys;
  if (storeKey === undefined) throw new FulgurError("ERR_CONFIG", `${join(dir, "store.json")} holds no key`);
  const publicKeyPath = join(dir, "store-public.pem");
  const { d: _private, ...open } = storeKey;
  const pem = createPublicKey({ format: "jwk", key: open }).export({ type: "spki", format: "pem" });
  await writeFile(publicKeyPath, pem, { mode: 0o600 });
  return {
    edge,
    vaultKey: await ensureVaultKey(join(dir, "vault.key")),
    store: {
      publicKeyPath,
      writeToken: await storeToken(storeKey, "rw"),
      readToken: await storeToken(storeKey, "ro"),
    },
  };
}

/**
 * Puts a new signing key first and keeps the others, so that tokens which they have signed go on until they expire. An
 * edge that runs takes it at its next start.
 * @returns the new key's id
 * @throws FulgurError ERR_CONFIG when there are no keys yet, ERR_DISK when the file cannot be written
 */
export async function rotateSigningKey(dir: string, now = Date.now()): Promise<string> {
  const path = join(dir, "edge.json");
  const kept = await readIfThere(path);
  if (kept === undefined) {
    throw new FulgurError("ERR_CONFIG", `there are no signing keys at ${path}; npm start makes the first`);
  }
  const fresh = await newSigningKey();
  const others = living(parse(path, kept), now).keys.map((key) => ({ retired_at: now, ...key }));
  const aside = `${path}.${randomUUID()}.part`;
  try {
    await writeFile(aside, keySetText([fresh, ...others]), { mode: 0o600 });
    await rename(aside, path);
  } catch (cause) {
    await rm(aside, { force: true });
    throw unwritten(path, cause);
  }
  return fresh.kid ?? "";
}

/** The keys that were not retired so long ago that nothing which they signed can be valid. */
function living(keySet: StoredKeySet, now: number): StoredKeySet {
  return {
    keys: keySet.keys.filter(({ retired_at: at }) => at === undefined || now - at < RETIRED_MS),
  };
}

/** The keys as the edge takes them, newest first. */
function signingKeys({ keys }: StoredKeySet): KeySet {
  return { keys: keys.map(({ retired_at: _at, ...key }) => key) };
}

/**
 * A token for libSQL. It does not expire, as the server it opens listens on loopback and its key lies beside it.
 * sqld lets a token without the `a` claim write, so both kinds carry it.
 */
async function storeToken(key: JWK, access: "rw" | "ro"): Promise<string> {
  return new SignJWT({ a: access }).setProtectedHeader({ alg: "EdDSA" }).sign(await importJWK(key, "EdDSA"));
}

async function ensureKeySet(path: string): Promise<StoredKeySet> {
  return parse(path, await ensureFile(path, async () => keySetText([await newSigningKey()])));
}

async function ensureVaultKey(path: string): Promise<string> {
  const text = await ensureFile(path, () => Promise.resolve(`${randomBytes(32).toString("base64url")}\n`));
  const key = text.trim();
  if (/^[A-Za-z0-9_-]{43}$/.test(key)) return key;
  throw new FulgurError(
    "ERR_CONFIG",
    `the key file ${path} does not hold 32 bytes in base64url; put the right one back, or remove it to have a new one made (providers' keys must be given again then)`,
  );
}

/** The file's text, made where it is missing, for its owner only. */
async function ensureFile(path: string, make: () => Promise<string>): Promise<string> {
  const kept = await readIfThere(path);
  if (kept !== undefined) {
    await chmod(path, 0o600);
    return kept;
  }
  // Written aside and linked: two first starts at once end up with one key, and a crash leaves no half file.
  const aside = `${path}.${randomUUID()}.part`;
  try {
    await writeFile(aside, await make(), { mode: 0o600 });
    await link(aside, path);
  } catch (cause) {
    if (!isErrno(cause, "EEXIST")) throw unwritten(path, cause);
  } finally {
    await rm(aside, { force: true });
  }
  return readFile(path, "utf8");
}

function keySetText(keys: readonly JWK[]): string {
  return `${JSON.stringify({ keys }, null, 2)}\n`;
}

function unwritten(path: string, cause: unknown): FulgurError {
  return new FulgurError(
    "ERR_DISK",
    `the key file ${path} could not be written (${messageOf(cause)}); check the folder's owner and free space`,
    { cause },
  );
}

function parse(path: string, text: string): StoredKeySet {
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
