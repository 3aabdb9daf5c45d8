/** Counters of the endpoint in Prometheus text, under vLLM's names so that existing dashboards fit. */

import { Counter, Histogram, renderGauge } from "../metrics/exposition.ts";

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
      renderGauge(name, help, [{ labels: {}, value }]);
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
