import { and, asc, desc, eq } from "drizzle-orm";
import { FulgurError } from "#shared/errors.ts";
import { policies, policyVersions } from "#shared/tables.ts";
import { versionName } from "#shared/words.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import { lastRow, type Transaction } from "./statement.ts";

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
 * Its read throws FulgurError ERR_NOT_FOUND when the policy or the version is not registered.
 */
export function routePolicy(tenantId: string, policy: string, version: number): Transaction<void> {
  return {
    statements: [
      {
        sql: `update policies set route_version = ? where tenant_id = ? and name = ? and exists
                (select 1 from policy_versions where tenant_id = ? and policy = ? and version = ?) returning name`,
        args: [version, tenantId, policy, tenantId, policy, version],
      },
    ],
    read: ([routed = []]) => {
      if (routed.length > 0) return;
      throw new FulgurError(
        "ERR_NOT_FOUND",
        `${versionName(policy, version)} is not registered, so nothing can be routed to it; register the version first`,
      );
    },
  };
}

export async function readPolicy(db: StoreDb, tenantId: string, name: string): Promise<Policy | undefined> {
  return (
    await db
      .select()
      .from(policies)
      .where(and(eq(policies.tenantId, tenantId), eq(policies.name, name)))
      .limit(1)
  )[0];
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
