import { and, asc, desc, eq } from "drizzle-orm";
import { FulgurError } from "#shared/errors.ts";
import { policies, policyVersions } from "#shared/tables.ts";
import { versionName } from "#shared/words.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import { lastRow, numberOf, type Transaction } from "./statement.ts";

export type Policy = typeof policies.$inferSelect;
export type PolicyVersion = typeof policyVersions.$inferSelect;
export type NewPolicyVersion = typeof policyVersions.$inferInsert;

const insertPolicy = insertInto(policies);
const insertVersion = insertInto(policyVersions);

export interface NewPolicy {
  readonly tenantId: string;
  readonly name: string;
  readonly kind: PolicyVersion["kind"];
  /** Folder or URI of version 0. */
  readonly artifact: string;
  readonly sha256: string;
}

/**
 * A policy with its version 0, which is routed at once. Repeatable.
 * Its read throws FulgurError ERR_CONFLICT when version 0 exists with another sha256: a version name is never reused.
 */
export function createPolicy(policy: NewPolicy, now: number): Transaction<void> {
  const { tenantId, name, kind, artifact, sha256 } = policy;
  const first = registerVersion({ tenantId, policy: name, version: 0, kind, artifact, sha256, createdAt: now });
  return {
    statements: [insertPolicy({ tenantId, name, routeVersion: 0, createdAt: now }), ...first.statements],
    read: first.read,
  };
}

/**
 * A policy version; repeatable.
 * Its read throws FulgurError ERR_CONFLICT when the version exists with another sha256.
 */
export function registerVersion(version: NewPolicyVersion): Transaction<void> {
  return {
    statements: [
      insertVersion(version),
      {
        sql: `select sha256 from policy_versions where tenant_id = ? and policy = ? and version = ?`,
        args: [version.tenantId, version.policy, version.version],
      },
    ],
    read: (rows) => {
      const kept = lastRow(rows)?.["sha256"];
      if (kept === version.sha256) return;
      throw new FulgurError(
        "ERR_CONFLICT",
        `${versionName(version.policy, version.version)} exists with sha256 ${String(kept)}, this one has ${version.sha256}; a version's name is never reused: publish it under the next number`,
      );
    },
  };
}

/**
 * Routes a policy's calls to a version.
 * Its read throws FulgurError ERR_NOT_FOUND when the policy or the version is not registered, ERR_CONFLICT when the version
 * is retired.
 */
export function routePolicy(tenantId: string, policy: string, version: number): Transaction<void> {
  return {
    statements: [
      {
        sql: `select retired_at from policy_versions where tenant_id = ? and policy = ? and version = ?`,
        args: [tenantId, policy, version],
      },
      {
        sql: `update policies set route_version = ? where tenant_id = ? and name = ? and exists
                (select 1 from policy_versions where tenant_id = ? and policy = ? and version = ? and retired_at is null)
              returning name`,
        args: [version, tenantId, policy, tenantId, policy, version],
      },
    ],
    read: ([versions = [], routed = []]) => {
      if (routed.length > 0) return;
      if (typeof versions[0]?.["retired_at"] === "number") {
        throw new FulgurError("ERR_CONFLICT", retiredMessage(versionName(policy, version)));
      }
      throw new FulgurError(
        "ERR_NOT_FOUND",
        `${versionName(policy, version)} is not registered, so nothing can be routed to it; register the version first`,
      );
    },
  };
}

/** What is said of a version that can no longer answer. */
export function retiredMessage(name: string): string {
  return `${name} is retired: its weights were removed (--keep-versions), so it can neither be routed nor pinned; GET /v1/policies lists the versions that are left`;
}

/**
 * Retires those of these versions that nobody needs; repeatable. Whoever removes their artifacts does it afterwards: what is
 * not retired may be asked for.
 *
 * Never retired are version 0, the routed one, those that rollouts under way are pinned to or that sampled a claimed batch,
 * and, of runs that are not finished, the last version and the one that the run began at.
 * @returns those of the versions that are retired now, in order
 */
export function retireVersions(
  tenantId: string,
  policy: string,
  { versions, now }: { readonly versions: readonly number[]; readonly now: number },
): Transaction<number[]> {
  const asked = [tenantId, policy, JSON.stringify(versions)] as const;
  return {
    statements: [
      {
        sql: `update policy_versions as v set retired_at = ? where ${ASKED} and retired_at is null and version > 0
              and not exists (select 1 from policies p
                where p.tenant_id = v.tenant_id and p.name = v.policy and p.route_version = v.version)
              and not exists (select 1 from rollouts r where r.status in ('queued', 'running')
                and +r.tenant_id = v.tenant_id and r.pin = v.policy || '@' || v.version)
              and not exists (select 1 from batches b
                cross join batch_entries e on e.batch_id = b.id cross join calls c on c.rollout_id = e.rollout_id
                where b.tenant_id = v.tenant_id and b.policy = v.policy and b.status = 'claimed'
                  and c.policy = v.policy and c.policy_version = v.version)
              and not exists (select 1 from runs u where u.id = v.run_id and u.finished_at is null
                and not exists (select 1 from policy_versions n where n.tenant_id = v.tenant_id and n.policy = v.policy
                  and n.version > v.version and n.run_id = v.run_id))
              and not exists (select 1 from policy_versions n cross join runs u on u.id = n.run_id
                where n.tenant_id = v.tenant_id and n.policy = v.policy and n.parent_version = v.version
                  and n.run_id is not v.run_id and u.finished_at is null)`,
        args: [now, ...asked],
      },
      {
        sql: `select version from policy_versions where ${ASKED} and retired_at is not null order by version`,
        args: [...asked],
      },
    ],
    read: (rows) => (rows.at(-1) ?? []).map((row) => numberOf(row, "version")),
  };
}

const ASKED = `tenant_id = ? and policy = ? and version in (select value from json_each(?))`;

export async function readPolicy(db: StoreDb, tenantId: string, name: string): Promise<Policy | undefined> {
  return (
    await db
      .select()
      .from(policies)
      .where(and(eq(policies.tenantId, tenantId), eq(policies.name, name)))
      .limit(1)
  )[0];
}

/** The highest version number that is registered; 0 where there is none. */
export async function readLastVersion(db: StoreDb, tenantId: string, policy: string): Promise<number> {
  const [last] = await db
    .select({ version: policyVersions.version })
    .from(policyVersions)
    .where(and(eq(policyVersions.tenantId, tenantId), eq(policyVersions.policy, policy)))
    .orderBy(desc(policyVersions.version))
    .limit(1);
  return last?.version ?? 0;
}

/** All policies by name, each with its versions, newest first. */
export async function listPolicies(
  db: StoreDb,
  tenantId: string,
): Promise<(Policy & { readonly versions: PolicyVersion[] })[]> {
  const [named, versions] = await Promise.all([
    db.select().from(policies).where(eq(policies.tenantId, tenantId)).orderBy(asc(policies.name)),
    db
      .select()
      .from(policyVersions)
      .where(eq(policyVersions.tenantId, tenantId))
      .orderBy(asc(policyVersions.policy), desc(policyVersions.version)),
  ]);
  return named.map((policy) => ({
    ...policy,
    versions: versions.filter((version) => version.policy === policy.name),
  }));
}

export async function readVersion(
  db: StoreDb,
  tenantId: string,
  policy: string,
  version: number,
): Promise<PolicyVersion | undefined> {
  return (
    await db
      .select()
      .from(policyVersions)
      .where(
        and(
          eq(policyVersions.tenantId, tenantId),
          eq(policyVersions.policy, policy),
          eq(policyVersions.version, version),
        ),
      )
      .limit(1)
  )[0];
}
