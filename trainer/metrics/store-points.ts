import type { EdgeClient } from "#shared/client.ts";
import { AFTER_PUBLISHING } from "./catalogue.ts";
import type { MetricSink, StepPoint } from "./sink.ts";

/**
 * The store's record of a step is written in the middle of publishing, with all that is known by then. What is measured
 * afterwards is added as points, which whoever reads the step finds among its metrics.
 */
export class StorePoints implements MetricSink {
  readonly name = "the store";
  readonly #edge: Pick<EdgeClient, "putMetrics">;
  readonly #run: string;

  constructor(edge: Pick<EdgeClient, "putMetrics">, run: string) {
    this.#edge = edge;
    this.#run = run;
  }

  async open(): Promise<void> {}

  async write({ step, metrics }: StepPoint): Promise<void> {
    const points = AFTER_PUBLISHING.flatMap((name) => {
      const value = metrics[name];
      // The store counts steps from 0.
      return value === undefined ? [] : [{ step: step - 1, name, value }];
    });
    if (points.length > 0) await this.#edge.putMetrics(this.#run, points);
  }

  async close(): Promise<void> {}
}
