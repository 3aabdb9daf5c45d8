import { Agent, request } from "node:http";

/** A load of equal requests over kept connections, in plain node:http: its own cost is part of every arm. */
export interface LoadOptions {
  readonly url: string;
  /** One after another, so that budgets are spent evenly. */
  readonly headers: readonly Readonly<Record<string, string>>[];
  readonly body: string;
  readonly concurrency: number;
  readonly durationMs: number;
}

export interface LoadResult {
  /** Whole answers with status 200. */
  readonly answers: number;
  readonly failures: number;
  readonly perSecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
}

export async function runLoad({ url, headers, body, concurrency, durationMs }: LoadOptions): Promise<LoadResult> {
  const agent = new Agent({ keepAlive: true, maxSockets: concurrency });
  const times: number[] = [];
  let failures = 0;
  let turn = 0;
  const startedAt = performance.now();
  const worker = async (): Promise<void> => {
    while (performance.now() - startedAt < durationMs) {
      const before = performance.now();
      const ok = await once({ agent, url, body, headers: headers[turn++ % headers.length] ?? {} });
      if (ok) times.push(performance.now() - before);
      else failures++;
    }
  };
  await Promise.all(Array.from({ length: concurrency }, worker));
  const seconds = (performance.now() - startedAt) / 1000;
  agent.destroy();
  times.sort((a, b) => a - b);
  return {
    answers: times.length,
    failures,
    perSecond: times.length / seconds,
    p50Ms: times[Math.floor(times.length / 2)] ?? Number.NaN,
    p99Ms: times[Math.floor(times.length * 0.99)] ?? Number.NaN,
  };
}

interface Once {
  readonly agent: Agent;
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** Whether a whole answer with status 200 came. */
function once({ agent, url, headers, body }: Once): Promise<boolean> {
  return new Promise((resolve) => {
    const sent = request(
      url,
      {
        agent,
        method: "POST",
        headers: { "content-type": "application/json", "content-length": Buffer.byteLength(body), ...headers },
      },
      (response) => {
        response.resume();
        response.once("end", () => resolve(response.statusCode === 200));
        response.once("error", () => resolve(false));
      },
    );
    sent.once("error", () => resolve(false));
    sent.end(body);
  });
}
