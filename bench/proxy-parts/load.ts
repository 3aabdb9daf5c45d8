import { connect, type Socket } from "node:net";

/**
 * A load of equal requests over kept connections. It speaks just enough HTTP/1.1 on bare sockets: its own cost is part of
 * every arm, and a general client's would be the largest part of a fast one's.
 */
export interface LoadOptions {
  readonly url: string;
  /** One after another, so that budgets are spent evenly. */
  readonly headers: readonly Readonly<Record<string, string>>[];
  readonly body: string;
  readonly concurrency: number;
  readonly durationMs: number;
  /**
   * Before the clock starts, and until each of `headers` was sent once: what an arm had remembered may have grown old while the
   * others had their turn.
   */
  readonly leadInMs?: number;
}

export interface LoadResult {
  /** Whole answers with status 200, those of the lead-in included. */
  readonly answers: number;
  readonly failures: number;
  readonly perSecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  /** Until the first byte of the body. */
  readonly firstByteP50Ms: number;
}

export async function runLoad(options: LoadOptions): Promise<LoadResult> {
  const { url, headers, body, concurrency, durationMs, leadInMs = 300 } = options;
  const target = new URL(url);
  const requests = headers.map((extra) => requestBytes(target, extra, body));
  const times: number[] = [];
  const firstBytes: number[] = [];
  let failures = 0;
  let answers = 0;
  let turn = 0;
  const leadInEndsAt = performance.now() + leadInMs;
  let startedAt = Infinity;
  const worker = async (): Promise<void> => {
    let connection: Connection | undefined;
    while (performance.now() - startedAt < durationMs) {
      connection ??= openConnection(target);
      const before = performance.now();
      if (startedAt === Infinity && turn >= requests.length && before >= leadInEndsAt) startedAt = before;
      const { ok, firstByteAt } = await connection.ask(requests[turn++ % requests.length] ?? Buffer.alloc(0));
      if (ok) answers++;
      if (ok && before >= startedAt) {
        times.push(performance.now() - before);
        firstBytes.push(firstByteAt - before);
      }
      if (!ok) failures++;
      if (connection.closed()) connection = undefined;
    }
    connection?.end();
  };
  await Promise.all(Array.from({ length: concurrency }, worker));
  const seconds = (performance.now() - startedAt) / 1000;
  return {
    answers,
    failures,
    perSecond: times.length / seconds,
    p50Ms: quantile(times, 0.5),
    p99Ms: quantile(times, 0.99),
    firstByteP50Ms: quantile(firstBytes, 0.5),
  };
}

function quantile(values: readonly number[], q: number): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length * q)] ?? Number.NaN;
}

export function requestBytes(target: URL, extra: Readonly<Record<string, string>>, body: string): Buffer {
  const headers = {
    host: target.host,
    "content-type": "application/json",
    "content-length": Buffer.byteLength(body),
    ...extra,
  };
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  return Buffer.from(`POST ${target.pathname} HTTP/1.1\r\n${lines.join("\r\n")}\r\n\r\n${body}`);
}

export interface Outcome {
  readonly ok: boolean;
  /** 0 where the connection ended before an answer. */
  readonly status: number;
  readonly firstByteAt: number;
}

export interface Connection {
  ask(request: Buffer): Promise<Outcome>;
  closed(): boolean;
  end(): void;
}

export function openConnection({ hostname, port }: URL): Connection {
  const socket: Socket = connect({ host: hostname, port: Number(port), noDelay: true });
  let reader = responseReader();
  let settle: ((outcome: Outcome) => void) | undefined;
  let closed = false;
  const done = (status: number): void => {
    settle?.({ ok: status === 200, status, firstByteAt: reader.firstByteAt() });
    settle = undefined;
  };
  socket.on("data", (bytes) => {
    const status = reader.take(bytes);
    if (status !== undefined) done(status);
  });
  socket.on("error", () => undefined);
  socket.on("close", () => {
    closed = true;
    done(0);
  });
  return {
    ask(request) {
      reader = responseReader();
      return new Promise((resolve) => {
        settle = resolve;
        socket.write(request);
      });
    },
    closed: () => closed,
    end: () => socket.destroy(),
  };
}

interface ResponseReader {
  /** The status, once the answer is whole. */
  take(bytes: Buffer): number | undefined;
  firstByteAt(): number;
}

const END_OF_CHUNKS = Buffer.from("\r\n0\r\n\r\n");

function responseReader(): ResponseReader {
  let head = Buffer.alloc(0);
  let status = 0;
  let headRead = false;
  /** Of a body with a declared length; undefined for a chunked one. */
  let left: number | undefined;
  let tail: Buffer = Buffer.alloc(0);
  let firstByteAt = 0;

  function takeHead(bytes: Buffer): Buffer | undefined {
    head = Buffer.concat([head, bytes]);
    const end = head.indexOf("\r\n\r\n");
    if (end === -1) return undefined;
    const text = head.toString("latin1", 0, end);
    status = Number(text.slice(9, 12));
    const declared = /\r\ncontent-length: *(\d+)/i.exec(text)?.[1];
    left = declared === undefined ? undefined : Number(declared);
    headRead = true;
    // The line end of the head is also what goes before the first chunk.
    return head.subarray(left === undefined ? end + 2 : end + 4);
  }

  return {
    take(bytes) {
      const wasHead = !headRead;
      const body = headRead ? bytes : takeHead(bytes);
      if (body === undefined) return undefined;
      if (firstByteAt === 0 && body.length > (wasHead && left === undefined ? 2 : 0)) firstByteAt = performance.now();
      if (left !== undefined) {
        left -= body.length;
        return left <= 0 ? status : undefined;
      }
      // Ours and the mock's events hold no bare end of chunks.
      tail = body.length >= END_OF_CHUNKS.length ? body : Buffer.concat([tail, body]);
      return tail.subarray(-END_OF_CHUNKS.length).equals(END_OF_CHUNKS) ? status : undefined;
    },
    firstByteAt: () => firstByteAt,
  };
}
