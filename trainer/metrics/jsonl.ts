import { readFile } from "node:fs/promises";
import { z } from "zod";
import { AppendFile } from "./append-file.ts";
import type { MetricSink, StepPoint } from "./sink.ts";

const lineSchema = z.looseObject({ step: z.int().min(1), time: z.iso.datetime() });
const valuesSchema = z.record(z.string(), z.unknown());

/**
 * `metrics.jsonl`: a step a line, `{"step":1,"time":"2026-11-21T18:00:00.000Z","reward_mean":0.4,…}`, in the order of
 * the steps, each once. It is the run's memory too: what a resumed trainer knows of the steps before.
 */
export class MetricsJournal implements MetricSink {
  readonly name: string;
  readonly #path: string;
  readonly #file: AppendFile;
  #last = 0;
  #history: StepPoint[] = [];

  constructor(path: string) {
    this.name = path;
    this.#path = path;
    this.#file = new AppendFile(path);
  }

  /** Takes back a line that was not finished, and those of steps that the checkpoint does not have. */
  async open(after: number): Promise<void> {
    const { points, bytes } = wholeLines(await textOf(this.#path), after);
    this.#history = points;
    this.#last = points.at(-1)?.step ?? 0;
    await this.#file.open(bytes);
  }

  /** The steps that were there when it was opened; it keeps them no longer. */
  takeHistory(): readonly StepPoint[] {
    const history = this.#history;
    this.#history = [];
    return history;
  }

  async write({ step, time, metrics }: StepPoint): Promise<void> {
    if (step <= this.#last) return;
    const line = JSON.stringify({ step, time: new Date(time).toISOString(), ...metrics });
    await this.#file.append(new TextEncoder().encode(`${line}\n`));
    this.#last = step;
  }

  async close(): Promise<void> {
    await this.#file.close();
  }
}

async function textOf(path: string): Promise<string> {
  return readFile(path, "utf8").catch((error: unknown) => {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return "";
    throw error;
  });
}

/** The leading lines that are whole, in order, and of steps up to `after`; and how many bytes they take. */
function wholeLines(text: string, after: number): { points: StepPoint[]; bytes: number } {
  const points: StepPoint[] = [];
  let bytes = 0;
  for (const line of text.split("\n").slice(0, -1)) {
    const point = pointOf(line);
    if (point === undefined || point.step > after || point.step <= (points.at(-1)?.step ?? 0)) break;
    points.push(point);
    bytes += Buffer.byteLength(line) + 1;
  }
  return { points, bytes };
}

function pointOf(line: string): StepPoint | undefined {
  try {
    const values = valuesSchema.parse(JSON.parse(line));
    const { step, time } = lineSchema.parse(values);
    const metrics = Object.fromEntries(
      Object.entries(values).flatMap(([key, value]) =>
        key === "step" || typeof value !== "number" ? [] : [[key, value] as const],
      ),
    );
    return { step, time: Date.parse(time), metrics };
  } catch {
    return undefined;
  }
}
