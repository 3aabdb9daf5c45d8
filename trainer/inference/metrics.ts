/** Counters of the endpoint in Prometheus text, under vLLM's names so that existing dashboards fit. */

/** Buckets in seconds of the latency histograms. */
const LATENCY_BUCKETS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10];

/** What one finished request adds. */
export interface RequestOutcome {
  readonly model: string;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly generationTokens: number;
  /** Null when it ended before its first token. */
  readonly firstTokenSeconds: number | null;
  readonly totalSeconds: number;
  readonly reason: string;
}

/** Values that are read when the page is asked for. */
export interface Gauges {
  readonly running: number;
  readonly waiting: number;
}

/** Counters since the process began. */
export class Metrics {
  readonly #promptTokens = new Counter("vllm:prompt_tokens_total", "Prompt tokens of finished requests");
  readonly #cachedTokens = new Counter("vllm:prefix_cache_hits_total", "Prompt tokens taken from the prefix cache");
  readonly #queriedTokens = new Counter(
    "vllm:prefix_cache_queries_total",
    "Prompt tokens looked for in the prefix cache",
  );
  readonly #generationTokens = new Counter("vllm:generation_tokens_total", "Tokens sampled for finished requests");
  readonly #finished = new Counter("vllm:request_success_total", "Finished requests by how they ended");
  readonly #firstToken = new Histogram("vllm:time_to_first_token_seconds", "From arrival to the first token");
  readonly #perToken = new Histogram(
    "vllm:request_time_per_output_token_seconds",
    "Mean time between tokens of a request",
  );
  readonly #total = new Histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token");

  /** Counts a request that ended, whatever the reason. */
  record(outcome: RequestOutcome): void {
    const labels = { model_name: outcome.model };
    this.#promptTokens.add(labels, outcome.promptTokens);
    this.#queriedTokens.add(labels, outcome.promptTokens);
    this.#cachedTokens.add(labels, outcome.cachedTokens);
    this.#generationTokens.add(labels, outcome.generationTokens);
    this.#finished.add({ ...labels, finished_reason: outcome.reason }, 1);
    this.#total.observe(labels, outcome.totalSeconds);
    if (outcome.firstTokenSeconds === null) return;
    this.#firstToken.observe(labels, outcome.firstTokenSeconds);
    if (outcome.generationTokens < 2) return;
    const between = (outcome.totalSeconds - outcome.firstTokenSeconds) / (outcome.generationTokens - 1);
    this.#perToken.observe(labels, between);
  }

  /** The metrics page. */
  render({ running, waiting }: Gauges): string {
    const gauge = (name: string, help: string, value: number): string =>
      `# HELP ${name} ${help}\n# TYPE ${name} gauge\n${name} ${value}\n`;
    return [
      gauge("vllm:num_requests_running", "Requests being sampled", running),
      gauge("vllm:num_requests_waiting", "Requests that wait for a row", waiting),
      this.#promptTokens.render(),
      this.#queriedTokens.render(),
      this.#cachedTokens.render(),
      this.#generationTokens.render(),
      this.#finished.render(),
      this.#firstToken.render(),
      this.#perToken.render(),
      this.#total.render(),
    ].join("");
  }
}

type Labels = Readonly<Record<string, string>>;

class Counter {
  readonly #name: string;
  readonly #help: string;
  readonly #values = new Map<string, number>();

  constructor(name: string, help: string) {
    this.#name = name;
    this.#help = help;
  }

  add(labels: Labels, amount: number): void {
    const key = labelText(labels);
    this.#values.set(key, (this.#values.get(key) ?? 0) + amount);
  }

  render(): string {
    const lines = [...this.#values].map(([labels, value]) => `${this.#name}{${labels}} ${value}\n`);
    return `# HELP ${this.#name} ${this.#help}\n# TYPE ${this.#name} counter\n${lines.join("")}`;
  }
}

class Histogram {
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
    const lines = [...this.#series].flatMap(([labels, { counts, sum, total }]) => [
      ...LATENCY_BUCKETS.map((bound, i) => `${this.#name}_bucket{${labels},le="${bound}"} ${counts[i] ?? 0}\n`),
      `${this.#name}_bucket{${labels},le="+Inf"} ${total}\n`,
      `${this.#name}_sum{${labels}} ${sum}\n`,
      `${this.#name}_count{${labels}} ${total}\n`,
    ]);
    return `# HELP ${this.#name} ${this.#help}\n# TYPE ${this.#name} histogram\n${lines.join("")}`;
  }
}

function labelText(labels: Labels): string {
  return Object.entries(labels)
    .map(
      ([name, value]) => `${name}="${value.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n")}"`,
    )
    .join(",");
}
