import { Command } from "commander";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { shardOf } from "#shared/shards.ts";
import { storeShards, type StoreShard } from "../../edge/shards.ts";

/** `fulgur shards`: the databases of a deployed edge, as its variables name them; docs/GATEWAY.md. */
export function shardsCommand(): Command {
  const command = new Command("shards").description(
    "the databases of a deployed edge, by its variables STORE_URL, STORE_SHARDS and STORE_HOMES",
  );

  command
    .command("prepare")
    .description(
      "bring each shard's schema up to date (with STORE_WRITE_TOKEN), and print the STORE_HOMES with which every tenant stays where it is",
    )
    .action(async () => {
      const shards = shardsOfEnvironment(variable("STORE_WRITE_TOKEN"));
      // Only now: what talks to a database takes long to load, and the other commands need none of it.
      const [{ migrateStore }, { homesOf }] = await Promise.all([import("../parts/store.ts"), import("../shards.ts")]);
      for (const shard of shards) {
        await migrateStore(shard);
        console.error(`shard ${shard.index}, ${shard.url}: its schema is up to date`);
      }
      console.log(JSON.stringify(await homesOf(shards)));
    });

  command
    .command("where")
    .description("print the address of the database that a tenant lives in, for its trainer's --store-url")
    .argument("<tenant>")
    .action((tenant: string) => {
      const shards = shardsOfEnvironment("");
      const homes = homesSchema.parse(JSON.parse(process.env["STORE_HOMES"] ?? "{}"));
      const home = shards[shardOf(tenant, { shards: shards.length, homes })];
      if (home === undefined)
        throw new FulgurError("ERR_CONFIG", `STORE_HOMES names a shard that is not there; there are ${shards.length}`);
      console.log(home.url);
    });
  return command;
}

const homesSchema = z.record(z.string(), z.int().min(0));

function shardsOfEnvironment(token: string): StoreShard[] {
  return storeShards({ STORE_URL: variable("STORE_URL"), STORE_SHARDS: process.env["STORE_SHARDS"] }, token);
}

/** @throws FulgurError ERR_CONFIG where it is not set */
function variable(name: string): string {
  const value = process.env[name];
  if (value !== undefined && value !== "") return value;
  throw new FulgurError("ERR_CONFIG", `this needs the edge's variable ${name} in the environment`);
}
