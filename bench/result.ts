/** What every benchmark returns and `npm run bench` prints and writes. */
export interface BenchResult {
  readonly name: string;
  /** Ours over the strongest peer on the headline case, above 1 where ours is better; null when no peer was there. */
  readonly ratio: number | null;
  /** One row a case: medians and ratios by column name. */
  readonly table: readonly Readonly<Record<string, unknown>>[];
  /** What was measured and how; peers that are missing, with the command that installs them. */
  readonly notes: readonly string[];
}
