import { openConnection, requestBytes, type Connection } from "../proxy-parts/load.ts";

/**
 * Requests at a fixed rate, whether or not answers keep up. A request's time counts from when it was due, so that waiting
 * for a free connection, or for this process, is not left out.
 */
export interface OpenLoopOptions {
  readonly url: string;
  /** One after another, so that budgets are spent evenly. */
  readonly headers: readonly Readonly<Record<string, string>>[];
  readonly body: string;
  readonly perSecond: number;
  readonly durationMs: number;
}

export interface OpenLoopResult {
  readonly sent: number;
  /** Answers by status; 0 for connections that ended without one. */
  readonly statuses: ReadonlyMap<number, number>;
  /** Of answers with status 200. */
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly maxMs: number;
  /** From the first request until the last answer. */
  readonly seconds: number;
  /** The most requests that waited for an answer at once. */
  readonly mostOpen: number;
}

const TICK_MS = 2;
/** More than these at once wait for one of them: a server that is so far behind is not asked faster. */
const MAX_CONNECTIONS = 1024;

export async function openLoop(options: OpenLoopOptions): Promise<OpenLoopResult> {
  const { url, headers, body, perSecond, durationMs } = options;
  const target = new URL(url);
  const requests = headers.map((extra) => requestBytes(target, extra, body));
  const free: Connection[] = [];
  const due: number[] = [];
  const statuses = new Map<number, number>();
  const times = histogram();
  let [connections, open, mostOpen, sent] = [0, 0, 0, 0];
  const { promise: finished, resolve: finish } = Promise.withResolvers<void>();
  const startedAt = performance.now();
  let isOver = false;

  const send = async (connection: Connection, dueAt: number, number: number): Promise<void> => {
    const { ok, status } = await connection.ask(requests[number % requests.length] ?? Buffer.alloc(0));
    open--;
    statuses.set(status, (statuses.get(status) ?? 0) + 1);
    if (ok) times.add(performance.now() - dueAt);
    if (connection.closed()) connections--;
    else free.push(connection);
    sendDue();
    if (isOver && open === 0 && due.length === 0) finish();
  };
  const sendDue = (): void => {
    while (due.length > 0) {
      let connection = free.pop();
      if (connection === undefined) {
        if (connections >= MAX_CONNECTIONS) return;
        connections++;
        connection = openConnection(target);
      }
      open++;
      mostOpen = Math.max(mostOpen, open);
      void send(connection, due.shift() ?? 0, sent++);
    }
  };
  let scheduled = 0;
  const timer = setInterval(() => {
    const elapsed = Math.min(durationMs, performance.now() - startedAt);
    for (; scheduled < (elapsed / 1000) * perSecond; scheduled++) due.push(startedAt + (scheduled * 1000) / perSecond);
    isOver = elapsed >= durationMs;
    if (isOver) clearInterval(timer);
    sendDue();
    if (isOver && open === 0 && due.length === 0) finish();
  }, TICK_MS);
  await finished;
  for (const connection of free) connection.end();
  return {
    sent,
    statuses,
    p50Ms: times.quantile(0.5),
    p99Ms: times.quantile(0.99),
    maxMs: times.max(),
    seconds: (performance.now() - startedAt) / 1000,
    mostOpen,
  };
}

/** Times in bins of a tenth of a millisecond, so that a long run takes no memory. */
function histogram() {
  const bins = new Uint32Array(200_000);
  let count = 0;
  let most = 0;
  return {
    add(ms: number): void {
      const bin = Math.min(bins.length - 1, Math.floor(ms * 10));
      bins[bin] = (bins[bin] ?? 0) + 1;
      count++;
      most = Math.max(most, ms);
    },
    quantile(q: number): number {
      let seen = 0;
      const at = bins.findIndex((many) => (seen += many) > count * q);
      return at === -1 ? Number.NaN : at / 10;
    },
    max: () => most,
  };
}
