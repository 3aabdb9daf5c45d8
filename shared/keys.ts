/**
 * Long-lived keys, `fk_<id>_<secret>`: the id finds the key's row, 256 random bits prove it. A hash of that much chance
 * needs neither salt nor slowness. An id begins with the shard where the row is (`3-…`), nothing where that is the first:
 * whose the key is, and with it where its tenant lives, is known only from the row.
 */
export interface NewKey {
  readonly id: string;
  /** The key itself, to be shown once and kept nowhere. */
  readonly key: string;
  /** SHA-256 of the whole key, hex. */
  readonly hash: string;
}

export const KEY_PREFIX = "fk_";

/** @param shard the key's tenant's */
export async function newKey(shard = 0): Promise<NewKey> {
  const id = `${shard === 0 ? "" : `${shard}-`}${hex(crypto.getRandomValues(new Uint8Array(8)))}`;
  const key = `${KEY_PREFIX}${id}_${base64url(crypto.getRandomValues(new Uint8Array(32)))}`;
  return { id, key, hash: await hashKey(key) };
}

/** The id of a text that has the form of a key; undefined where it has not. */
export function keyIdOf(text: string): string | undefined {
  return /^fk_((?:[1-9][0-9]{0,3}-)?[0-9a-f]{16})_[A-Za-z0-9_-]{43}$/.exec(text)?.[1];
}

/** The shard that a key's id names. */
export function shardOfKeyId(id: string): number {
  const end = id.indexOf("-");
  return end === -1 ? 0 : Number(id.slice(0, end));
}

/** SHA-256 of a key, hex. */
export async function hashKey(key: string): Promise<string> {
  return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(key))));
}

/** Whether two hashes are the same, in a time that does not tell where they differ. */
export function sameHash(left: string, right: string): boolean {
  if (left.length !== right.length) return false;
  let difference = 0;
  for (let at = 0; at < left.length; at++) difference |= left.charCodeAt(at) ^ right.charCodeAt(at);
  return difference === 0;
}

function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replace(/=+$/, "");
}
