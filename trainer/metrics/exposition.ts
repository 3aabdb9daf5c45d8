/** Prometheus' text exposition: families of samples with their HELP and TYPE. */

/** What `GET /metrics` answers with. */
export const EXPOSITION_TYPE = "text/plain; version=0.0.4; charset=utf-8";

/** Upper bounds in seconds of the latency histograms. */
const LATENCY_BUCKETS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10];

export type Labels = Readonly<Record<string, string>>;

/** A sum that only grows, by its labels. */
export class Counter {
  readonly #name: string;
  readonly #help: string;
  readonly #values = new Map<string, number>();

  /** @param name ends in `_total` */
  constructor(name: string, help: string) {
    this.#name = name;
    this.#help = help;
  }

  add(labels: Labels, amount: number): void {
    const key = labelText(labels);
    this.#values.set(key, (this.#values.get(key) ?? 0) + amount);
  }

  render(): string {
    return family(
      this.#name,
      { type: "counter", help: this.#help },
      [...this.#values].map(([labels, value]) => sample(this.#name, labels, value)),
    );
  }
}

/** A value that goes up and down, by its labels. */
export function renderGauge(
  name: string,
  help: string,
  values: readonly { readonly labels: Labels; readonly value: number }[],
): string {
  return family(
    name,
    { type: "gauge", help },
    values.map(({ labels, value }) => sample(name, labelText(labels), value)),
  );
}

/** How long things took, by their labels. */
export class Histogram {
  readonly #name: string;
  readonly #help: string;
  readonly #series = new Map<string, { counts: number[]; sum: number; total: number }>();

  constructor(name: string, help: string) {
    this.#name = name;
    this.#help = help;
  }

  observe(labels: Labels, seconds: number): void {
    const key = labelText(labels);
    let series = this.#series.get(key);
    if (series === undefined) {
      series = { counts: LATENCY_BUCKETS.map(() => 0), sum: 0, total: 0 };
      this.#series.set(key, series);
    }
    for (const [i, bound] of LATENCY_BUCKETS.entries()) {
      if (seconds <= bound) series.counts[i] = (series.counts[i] ?? 0) + 1;
    }
    series.sum += seconds;
    series.total++;
  }

  render(): string {
    const name = this.#name;
    const samples = [...this.#series].flatMap(([labels, { counts, sum, total }]) => {
      const before = labels === "" ? "" : `${labels},`;
      return [
        ...LATENCY_BUCKETS.map((bound, i) => sample(`${name}_bucket`, `${before}le="${bound}"`, counts[i] ?? 0)),
        sample(`${name}_bucket`, `${before}le="+Inf"`, total),
        sample(`${name}_sum`, labels, sum),
        sample(`${name}_count`, labels, total),
      ];
    });
    return family(name, { type: "histogram", help: this.#help }, samples);
  }
}

function family(
  name: string,
  { type, help }: { readonly type: string; readonly help: string },
  samples: readonly string[],
): string {
  const escaped = help.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
  return `# HELP ${name} ${escaped}\n# TYPE ${name} ${type}\n${samples.join("")}`;
}

function sample(name: string, labels: string, value: number): string {
  return `${name}${labels === "" ? "" : `{${labels}}`} ${numberText(value)}\n`;
}

function numberText(value: number): string {
  if (Number.isFinite(value)) return String(value);
  return Number.isNaN(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
}

function labelText(labels: Labels): string {
  return Object.entries(labels)
    .map(
      ([name, value]) => `${name}="${value.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n")}"`,
    )
    .join(",");
}
