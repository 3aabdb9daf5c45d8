/** Where a run's metrics go, besides the store's own record of a step. */

/** The metrics of one step. */
export interface StepPoint {
  /** Steps trained, this one included: the first is 1. */
  readonly step: number;
  /** Milliseconds since the epoch. */
  readonly time: number;
  /** By key (key.ts), under the names of docs/METRICS.md. */
  readonly metrics: Readonly<Record<string, number>>;
}

export interface MetricSink {
  /** For the warning when it fails. */
  readonly name: string;
  /** Before the first point. @param after the step that the run goes on from; what is there of later ones is not history */
  open(after: number): Promise<void>;
  /** Repeatable: a trainer that died after a step may write it again. */
  write(point: StepPoint): Promise<void>;
  close(): Promise<void>;
}
