import { FulgurError } from "#shared/errors.ts";
import { shardOf, type Placement } from "#shared/shards.ts";

/**
 * The databases of an edge. Each has a writer and a dispatcher of its own and is asked and written for its own tenants
 * alone, so what becomes of one is felt by nobody else.
 */
export interface StoreShard {
  /** Its place in STORE_SHARDS, from 0 on. */
  readonly index: number;
  readonly url: string;
  readonly token: string;
}

export interface ShardVariables {
  /** The first shard's address. */
  readonly STORE_URL: string;
  /** All addresses with commas between, the first included; without it there is one shard. */
  readonly STORE_SHARDS?: string | undefined;
}

/**
 * The shards in their order, which is for good: tenants and outboxes are found by it.
 * @param tokens one for all, or one for each, with commas between; where nobody needs them, none
 * @throws FulgurError ERR_CONFIG where addresses or tokens do not fit together
 */
export function storeShards({ STORE_URL, STORE_SHARDS }: ShardVariables, tokens: string): StoreShard[] {
  const urls = STORE_SHARDS === undefined ? [STORE_URL] : listed(STORE_SHARDS);
  if (urls[0] !== STORE_URL || !urls.every((url) => URL.canParse(url)) || new Set(urls).size !== urls.length) {
    throw new FulgurError(
      "ERR_CONFIG",
      "the edge's variable STORE_SHARDS takes every shard's address once, with commas between, the first of them being STORE_URL",
    );
  }
  const each = listed(tokens);
  if (each.length > 1 && each.length !== urls.length) {
    throw new FulgurError(
      "ERR_CONFIG",
      `the edge has ${urls.length} shards and ${each.length} store tokens: STORE_READ_TOKEN and STORE_WRITE_TOKEN each take one for all, or one for each with commas between`,
    );
  }
  return urls.map((url, index) => ({ index, url, token: each[index] ?? each[0] ?? "" }));
}

function listed(text: string): string[] {
  return text
    .split(",")
    .map((part) => part.trim())
    .filter((part) => part !== "");
}

/** {@link shardOf} that does not work a tenant out twice; tenants come from tokens and keys, so they are not many. */
export function rememberedShardOf(placement: Placement): (tenantId: string) => number {
  if (placement.shards === 1) return () => 0;
  const known = new Map<string, number>();
  return (tenantId) => {
    let shard = known.get(tenantId);
    if (shard === undefined) known.set(tenantId, (shard = shardOf(tenantId, placement)));
    return shard;
  };
}

/** The name of a shard's Durable Object; the first has the one that it had alone, so that its outbox goes on. */
export function objectName(kind: "writer" | "dispatcher", shard: number): string {
  return shard === 0 ? kind : `${kind}:${shard}`;
}

/** What an object's namespace and id are asked here. */
interface Namespace<Id> {
  idFromName(name: string): Id;
}

/**
 * Which shard's Durable Object this is: an alarm wakes one without saying its name.
 * @throws FulgurError ERR_CONFIG where it is none's; what is in its outbox must not go to another database
 */
export function shardOfObject<Id>(
  namespace: Namespace<Id>,
  id: { equals(other: Id): boolean },
  { kind, shards }: { readonly kind: "writer" | "dispatcher"; readonly shards: readonly StoreShard[] },
): StoreShard {
  const own = shards.find(({ index }) => id.equals(namespace.idFromName(objectName(kind, index))));
  if (own !== undefined) return own;
  throw new FulgurError(
    "ERR_CONFIG",
    `this ${kind} is of none of the ${shards.length} shards in STORE_SHARDS; give back the shard that was taken away`,
  );
}

/** The binding that is a direct way to a shard: `STORE`, `STORE_1`, `STORE_2`, … */
export function storeBinding(shard: number): string {
  return shard === 0 ? "STORE" : `STORE_${shard}`;
}
