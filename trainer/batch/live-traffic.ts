import type { BatchClaim } from "#shared/wire.ts";
import { versionName } from "#shared/words.ts";
import { stalenessBound } from "../config.ts";
import type { ClaimDeps, ClaimPosition } from "./claim.ts";
import { versionAt, type Lineage } from "./staleness.ts";

/** Looks at the store are this far apart at least: a look reads all live rollouts of the window. */
const POLL_MS = 2000;
/** Every so many looks it is asked whether traffic still comes to this run's versions. */
const LOOKS_A_ROUTE = 30;

/**
 * Waits until so many groups of live traffic can be claimed. Nobody knows when users come, so there is no limit to it.
 * @returns what the claim says of them
 */
export async function waitForLive(
  deps: ClaimDeps,
  { step, lineage }: Pick<ClaimPosition, "step" | "lineage">,
  wanted: number,
): Promise<NonNullable<BatchClaim["live"]>> {
  const { config, records } = deps;
  const { agent, policy, groupSize, liveHours } = config;
  const versions = versionsWithin(lineage, step, stalenessBound(config));
  let warned: number | undefined;
  for (let look = 0; ; look += 1) {
    const since = Math.max(0, Math.floor(Date.now() - liveHours * 3_600_000));
    const come = await records.countLive({ agent, policy, since, versions });
    if (come >= wanted * groupSize) return { agent, groupSize, since, versions };
    if (look % LOOKS_A_ROUTE === 0) {
      const routed = (await records.policy(policy))?.routeVersion;
      if (routed !== undefined && routed !== warned && !versions.includes(routed)) {
        warned = routed;
        deps.warn?.(
          `calls go to ${versionName(policy, routed)}, and this run can train on those of ${versions.map((version) => versionName(policy, version)).join(", ")} alone; route one of them, or begin a new run`,
        );
      }
    }
    deps.onWaiting?.(come, wanted * groupSize);
    await deps.pause(Math.max(POLL_MS, config.pollMs));
  }
}

/** The run's versions that are at most so many steps behind the current one, oldest first. */
export function versionsWithin(lineage: Lineage, step: number, maxStaleness: number): number[] {
  const oldest = Math.max(0, step - maxStaleness);
  return Array.from({ length: step - oldest + 1 }, (_, at) => versionAt(lineage, oldest + at));
}
