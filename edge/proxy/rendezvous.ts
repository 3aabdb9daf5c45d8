/**
 * Rendezvous hashing: of any set of servers a key has a first choice, a second and so on, which no other server's coming or
 * going changes. So a rollout's calls meet the prompts of its earlier turns in one server's cache, and a server that is
 * taken out moves its own rollouts alone.
 * @see Thaler and Ravishankar 1998, "Using name-based mappings to increase hit rates"
 */

/** 32 bits of a text (FNV-1a). */
export function hashOf(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return mixed(hash);
}

/** How much a key wants a server, both by {@link hashOf}: the highest is its first choice. */
export function affinity(key: number, server: number): number {
  return mixed(key ^ server);
}

/** Every bit of the input sways every bit of the result (the last steps of MurmurHash3). */
function mixed(hash: number): number {
  let h = hash;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}
