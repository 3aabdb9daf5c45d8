import { messageOf } from "#shared/errors.ts";
import { Alarms, type Alarm, type Metrics } from "./alarms.ts";
import type { MetricsJournal } from "./jsonl.ts";
import { parseKey } from "./key.ts";
import type { MetricSink } from "./sink.ts";

export interface RunMetricsOptions {
  /** Remembers the steps of earlier starts. It is written last: a step that it has is everywhere. */
  readonly journal: MetricsJournal;
  readonly sinks: readonly MetricSink[];
  readonly alarms?: Alarms;
  /** A sink that fails is warned of once; training does not depend on it. */
  readonly warn: (message: string) => void;
  /** Milliseconds since the epoch. */
  readonly clock: () => number;
}

/**
 * Values by task are written to sinks that keep a series for each only where there are so many tasks at most; of a
 * thousand each would be a point once in a while. The journal and the store have them always.
 */
const MAX_TASK_SERIES = 64;

/** Where a run stands when a trainer starts. */
export interface RunPosition {
  /** Steps trained. */
  readonly step: number;
  /** The metrics of the last one; null before the first. */
  readonly last: Metrics | null;
  /** Tasks that the agent is trained on. */
  readonly tasks: number;
}

/** What a run tells of its steps to the world, and what it finds worrying in them. */
export class RunMetrics {
  readonly #sinks: readonly MetricSink[];
  readonly #options: RunMetricsOptions;
  readonly #alarms: Alarms;
  readonly #failed = new Set<MetricSink>();
  readonly #closed = new Set<MetricSink>();
  #hasTaskSeries = false;

  constructor(options: RunMetricsOptions) {
    this.#options = options;
    this.#alarms = options.alarms ?? new Alarms();
    this.#sinks = [...options.sinks, options.journal];
  }

  /**
   * Goes on after some steps. What alarms said of these is not said again. A trainer that died between its checkpoint and
   * its report makes up for it here.
   * @returns the alarms that such a step would have raised
   */
  async open({ step, last, tasks }: RunPosition): Promise<Alarm[]> {
    const { journal } = this.#options;
    this.#hasTaskSeries = tasks <= MAX_TASK_SERIES;
    for (const sink of this.#sinks) await this.#try(sink, () => sink.open(step), "open");
    const history = journal.takeHistory();
    for (const { metrics } of history) this.#alarms.observe(metrics);
    if (last === null || (history.at(-1)?.step ?? 0) >= step) return [];
    await this.write(step, last);
    return this.#alarms.observe(last);
  }

  /** Looks for what should worry in a new step. */
  observe(metrics: Metrics): Alarm[] {
    return this.#alarms.observe(metrics);
  }

  /** Tells of a step. @param step from 1 */
  async write(step: number, metrics: Metrics): Promise<void> {
    const point = { step, time: this.#options.clock(), metrics };
    const series = this.#hasTaskSeries ? point : { ...point, metrics: withoutTasks(metrics) };
    for (const sink of this.#options.sinks) await this.#try(sink, () => sink.write(series), "write");
    await this.#try(this.#options.journal, () => this.#options.journal.write(point), "write");
  }

  async close(): Promise<void> {
    for (const sink of this.#sinks) await this.#try(sink, () => sink.close(), "close");
  }

  async #try(sink: MetricSink, action: () => Promise<void>, doing: "open" | "write" | "close"): Promise<void> {
    if (this.#closed.has(sink)) return;
    try {
      await action();
    } catch (error) {
      // What did not open has nowhere to write; what could not write now may later, when the disk has room again.
      if (doing === "open") this.#closed.add(sink);
      if (this.#failed.has(sink)) return;
      this.#failed.add(sink);
      const loss = doing === "open" ? "gets no metrics of this run" : "lacks metrics of this run from here on";
      this.#options.warn(`${sink.name} ${loss}: ${messageOf(error)}; training goes on`);
    }
  }
}

function withoutTasks(metrics: Metrics): Metrics {
  return Object.fromEntries(Object.entries(metrics).filter(([key]) => parseKey(key).label !== "task"));
}
