import { logger } from "#shared/log.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { deleteRollouts, listExpired, listRetentions } from "#shared/store/subjects.ts";
import type { StoreWriter } from "#shared/store/statement.ts";

/** Live rollouts that are older than their tenant keeps them are deleted, a few at a time. */

export interface RetentionDeps {
  readonly db: StoreDb;
  readonly writer: Pick<StoreWriter, "transact">;
  /** Milliseconds since the epoch. */
  readonly now: number;
}

/** Of one transaction: a rollout may have dozens of calls of many kilobytes each. */
const PAGE = 50;
/** Of one sweep, so that calls are not held up; the next goes on. */
const PAGES = 20;
const DAY_MS = 86_400_000;

const log = logger("retention");

/**
 * Repeatable, and bounded: what is left is the next sweep's.
 * @returns how many rollouts were deleted
 * @throws FulgurError ERR_STORE while the store is away
 */
export async function sweepRetention({ db, writer, now }: RetentionDeps): Promise<number> {
  let deleted = 0;
  let pages = PAGES;
  for (const { tenantId, days } of await listRetentions(db)) {
    while (pages > 0) {
      const ids = await listExpired(db, tenantId, { before: now - days * DAY_MS, limit: PAGE });
      if (ids.length === 0) break;
      await writer.transact(deleteRollouts(tenantId, ids));
      pages -= 1;
      deleted += ids.length;
      if (ids.length < PAGE) break;
    }
  }
  if (deleted > 0) log.info("rollouts.expired", { deleted });
  return deleted;
}
