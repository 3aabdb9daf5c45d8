import type { EdgeClient } from "#shared/client.ts";
import type { InferenceClient } from "#shared/inference-client.ts";
import { logger } from "#shared/log.ts";
import { servedName } from "#shared/words.ts";
import { versionAt } from "../batch/staleness.ts";
import type { Engine } from "../engine/contract.ts";
import type { Records } from "../records.ts";
import { exportVersion, lastVersionOnDisk, versionOfBatch, type ArtifactOptions } from "./artifact.ts";
import type { LoopState } from "./checkpoint.ts";

const log = logger("trainer");

export interface PublishDeps {
  /** Whose policy it is. */
  readonly tenant: string;
  readonly engine: Pick<Engine, "info" | "exportAdapter" | "exportWeights">;
  readonly edge: Pick<EdgeClient, "markTrained" | "routePolicy">;
  readonly records: Pick<Records, "batch" | "lastVersion">;
  readonly inference: InferenceClient;
  readonly artifact: Pick<ArtifactOptions, "versions" | "baseSha256">;
  /** Milliseconds. */
  readonly now: () => number;
}

/**
 * Makes the weights of a checkpoint the version that answers calls.
 *
 * The order is what makes a crash at any point harmless:
 *
 * 1. The checkpoint is on disk before anything here. From then on the update exists, and a restarted trainer begins
 *    with this function. Before it, the update is lost with the process, and the claimed batch is trained again from
 *    its entries: either way once.
 * 2. The artifact is a function of the checkpoint; one that is there already is proven and kept, under its number. A new
 *    one takes the next number that nobody has: other runs of the policy may have taken some since the last step.
 * 3. In one transaction the batch is marked trained and the version registered. Repeated, it changes nothing.
 * 4. Inference loads the version and proves that it answers under its name; both may be repeated.
 * 5. Only then the route changes. Until then calls go to the version before, which is merely a step older.
 *
 * @returns the state with the version's number in its lineage
 */
export async function publish(deps: PublishDeps, state: LoopState): Promise<LoopState> {
  const { tenant, engine, edge, inference, now } = deps;
  const { policy, step, lineage, lastBatch } = state;
  if (lastBatch === null) return state;
  const version = await numberOf(deps, state, lastBatch.id);
  const name = servedName(tenant, policy, version);
  const times = [now()];
  const artifact = await exportVersion(engine, { name, version, batchId: lastBatch.id, ...deps.artifact });
  times.push(now());
  await edge.markTrained(lastBatch.id, {
    version,
    parentVersion: versionAt(lineage, step - 1),
    kind: artifact.kind,
    artifact: artifact.folder,
    sha256: artifact.sha256,
    metrics: lastBatch.metrics,
  });
  times.push(now());
  await inference.load(name, artifact.folder);
  times.push(now());
  await inference.prove(name);
  times.push(now());
  await edge.routePolicy(policy, version);
  times.push(now());
  const [exportMs, markMs, loadMs, proveMs, routeMs] = times.slice(1).map((at, i) => Math.round(at - (times[i] ?? at)));
  log.info("version.published", { name, exportMs, markMs, loadMs, proveMs, routeMs });
  return { ...state, lineage: { ...lineage, made: [...lineage.made.slice(0, step - 1), version] } };
}

/** The number of the version that a batch is trained into: what it has already, in the store or on disk, or the next free one. */
async function numberOf(
  { records, artifact: { versions } }: PublishDeps,
  { policy, step, lineage }: LoopState,
  batchId: string,
): Promise<number> {
  const [batch, lastVersion] = await Promise.all([records.batch(batchId), records.lastVersion(policy)]);
  if (typeof batch?.version === "number") return batch.version;
  const exported = await versionOfBatch(versions, batchId, versionAt(lineage, step - 1));
  return exported ?? Math.max(lastVersion, await lastVersionOnDisk(versions)) + 1;
}

/**
 * Unloads the version before the last: rollouts under way may still use the last one. The base stays, adapters lie on
 * it. Inference waits for the version's last request, so this comes after the route has changed.
 */
export async function retireOldVersion(
  { tenant, inference }: { readonly tenant: string; readonly inference: Pick<InferenceClient, "unload"> },
  { policy, step, lineage }: LoopState,
): Promise<void> {
  if (step >= 3) await inference.unload(servedName(tenant, policy, versionAt(lineage, step - 2)));
}
