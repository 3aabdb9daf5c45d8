import { readdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { FulgurError } from "#shared/errors.ts";
import { shardOf } from "#shared/shards.ts";
import { connectStore } from "#shared/store/connect.ts";
import { listTenants } from "#shared/store/tenants.ts";
import { storePartName } from "./part.ts";
import type { StateDir } from "./state.ts";

/** Where a shard of a local installation lies. */
export function storeDir(state: Pick<StateDir, "store">, shard: number): string {
  return join(dirname(state.store), storePartName(shard));
}

/** How many shards a local installation has been given so far; one where it is new. */
export async function shardsOf(state: Pick<StateDir, "store">): Promise<number> {
  const names = await readdir(dirname(state.store)).catch(() => []);
  const shards = names.flatMap((name) => /^store-([1-9]\d*)$/.exec(name)?.[1] ?? []).map(Number);
  return 1 + Math.max(0, ...shards);
}

/** @throws FulgurError ERR_CONFIG where there are more already: who lives in the others would be gone */
export async function requireEveryShard(state: Pick<StateDir, "store">, shards: number): Promise<void> {
  const there = await shardsOf(state);
  if (there <= shards) return;
  throw new FulgurError(
    "ERR_CONFIG",
    `${dirname(state.store)} has ${there} shards and is to be started with ${shards}; start it with --shards ${there}, for tenants do not move`,
  );
}

/**
 * The tenants that live in another shard than their name says, by what is in the databases: each stays where it is when
 * shards are added. For the edge's STORE_HOMES.
 * @throws FulgurError ERR_CONFIG where a tenant has something in two shards
 */
export async function homesOf(
  stores: readonly { readonly url: string; readonly token: string }[],
): Promise<Record<string, number>> {
  const found = await Promise.all(stores.map((store) => listTenants(connectStore(store))));
  const places = new Map<string, number>();
  for (const [shard, tenants] of found.entries()) {
    for (const tenant of tenants) {
      const other = places.get(tenant);
      if (other !== undefined) {
        throw new FulgurError(
          "ERR_CONFIG",
          `tenant ${tenant} has something in shard ${other} and in shard ${shard}; it can live in one: delete what is not its own`,
        );
      }
      places.set(tenant, shard);
    }
  }
  return Object.fromEntries(
    [...places].filter(([tenant, shard]) => shardOf(tenant, { shards: stores.length }) !== shard),
  );
}
