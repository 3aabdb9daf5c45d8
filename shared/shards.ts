/**
 * Which of several databases a tenant lives in. A tenant lives wholly in one, so that every transaction and every question
 * stays within one; the edge, the trainer and the command line must all come to the same one.
 */
export interface Placement {
  /** How many databases there are, at least one. */
  readonly shards: number;
  /** Tenants that live elsewhere than their name says: those that were there before a shard was added, or were moved. */
  readonly homes?: Readonly<Record<string, number>>;
}

/**
 * The number of a tenant's shard, from 0 on.
 *
 * Rendezvous hashing: the name's FNV-1a (32 bits, over UTF-8) is mixed with each shard's number (MurmurHash3's finalizer)
 * and the highest wins, the first of equals. So it depends on nothing but the name and the count, and one more shard takes
 * over a share of each of the others and moves nobody between those.
 * @see Thaler and Ravishankar 1998, "Using name-based mappings to increase hit rates"
 */
export function shardOf(tenantId: string, { shards, homes }: Placement): number {
  const home = homes !== undefined && Object.hasOwn(homes, tenantId) ? homes[tenantId] : undefined;
  if (home !== undefined) return home;
  if (shards === 1) return 0;
  const name = fnv1a(new TextEncoder().encode(tenantId));
  let best = 0;
  let bestScore = -1;
  for (let shard = 0; shard < shards; shard++) {
    const score = mixed(name ^ mixed(shard + 1));
    if (score > bestScore) [best, bestScore] = [shard, score];
  }
  return best;
}

function fnv1a(bytes: Uint8Array): number {
  let hash = 0x811c9dc5;
  for (const byte of bytes) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

/** Every bit of the result depends on every bit given. */
function mixed(value: number): number {
  let bits = value;
  bits = Math.imul(bits ^ (bits >>> 16), 0x85ebca6b);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35);
  return (bits ^ (bits >>> 16)) >>> 0;
}
