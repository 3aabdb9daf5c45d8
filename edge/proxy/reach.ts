import { FulgurError } from "#shared/errors.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { readVersion } from "#shared/store/policies.ts";
import { versionName } from "#shared/words.ts";
import type { EdgeConfig } from "../config.ts";
import { inferenceAdmin } from "./inference-fetch.ts";
import type { Reach } from "./servers.ts";

export interface ReachOptions extends Pick<Reach, "now" | "later"> {
  /** A request's connections, by shard. */
  readonly dbOf: (shard: number) => StoreDb;
}

/** How one request reaches the inference servers: their other side by HTTP, the versions' artifacts from the store. */
export function reachOf(env: object, config: EdgeConfig, { dbOf, now, later }: ReachOptions): Reach {
  return {
    admin: inferenceAdmin(env, config, now),
    async artifactOf({ tenantId, policy, version }) {
      const row = await readVersion(dbOf(config.shardOf(tenantId)), tenantId, policy, version);
      if (row !== undefined) return row.artifact;
      throw new FulgurError(
        "ERR_UNKNOWN_POLICY",
        `${versionName(policy, version)} is not registered, so no server can load it`,
      );
    },
    now,
    later,
  };
}
