import { audited } from "#shared/store/audit.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { deleteContent, forgetSubject, readSubject, type SubjectRollout } from "#shared/store/subjects.ts";
import type { StoreWriter } from "#shared/store/statement.ts";
import type { Principal } from "#shared/tokens.ts";
import type { SubjectDeleted } from "#shared/wire-feedback.ts";

export interface SubjectDeps {
  readonly db: StoreDb;
  readonly writer: Pick<StoreWriter, "transact">;
  /** Milliseconds since the epoch. */
  readonly now: number;
}

/** Rollouts of one transaction. */
const PAGE = 50;

/**
 * Deletes what is kept of a subject, and says what had been learned from it. Repeatable, also after it was interrupted: the
 * subject's id leaves the rows last, together with the audit row. A subject that is not known has no rollouts.
 * @throws FulgurError ERR_STORE while the store is away
 */
export async function deleteSubject(
  { db, writer, now }: SubjectDeps,
  by: Pick<Principal, "tenantId" | "jti" | "keyId">,
  subject: string,
): Promise<SubjectDeleted> {
  const { tenantId } = by;
  const found = await readSubject(db, tenantId, subject);
  for (let at = 0; at < found.length; at += PAGE) {
    const ids = found.slice(at, at + PAGE).map(({ id }) => id);
    await writer.transact(deleteContent(tenantId, ids, now));
  }
  const said = report(subject, found);
  const { rollouts, dropped, claimed, trained } = said;
  await writer.transact([
    forgetSubject(tenantId, subject),
    audited({
      by,
      action: "subject.deleted",
      target: subject,
      detail: {
        rollouts,
        dropped,
        claimed: claimed.map((each) => ({ ...each })),
        trained: trained.map((each) => ({ ...each })),
      },
      now,
    }),
  ]);
  return said;
}

/** What a deletion meant, from the rollouts as they were before it. */
export function report(subject: string, found: readonly SubjectRollout[]): SubjectDeleted {
  const open = found.filter(({ disposition }) => disposition === null);
  const learned = found.filter(({ disposition }) => disposition === "trained");
  return {
    subject,
    rollouts: found.length,
    dropped: open.length,
    claimed: byBatch(open.filter(({ batch }) => batch?.status === "claimed")).map(({ batch, count }) => ({
      batch_id: batch.id,
      run_id: batch.runId,
      step: batch.step,
      rollouts: count,
    })),
    trained: byBatch(learned).map(({ batch, count }) => ({
      batch_id: batch.id,
      run_id: batch.runId,
      policy: batch.policy,
      version: batch.version,
      rollouts: count,
    })),
  };
}

function byBatch(found: readonly SubjectRollout[]) {
  return [...Map.groupBy(found, ({ batch }) => batch?.id)].flatMap(([, ofBatch]) => {
    const batch = ofBatch[0]?.batch;
    return batch === undefined || batch === null ? [] : [{ batch, count: ofBatch.length }];
  });
}
