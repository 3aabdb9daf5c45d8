import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { benchPrompt, writeBenchAdapter, writeBenchModel } from "./decode-parts/model.ts";
import { type BenchServer, startOurs } from "./decode-parts/servers.ts";
import type { BenchResult } from "./result.ts";

/**
 * A new version under load: 32 streams ask the version before all the time; how long from an adapter that lies on disk
 * to the first whole answer by it, and does any stream fail or mix versions?
 */

export const name = "swap";

const STREAMS = 32;
const SWAPS = 8;
const BAR_MS = 300;

/** Runs the benchmark; there is no peer, so there is no ratio. */
export async function run(): Promise<BenchResult> {
  const dir = await mkdtemp(join(tmpdir(), "fulgur-bench-swap-"));
  let server: BenchServer | undefined;
  try {
    const modelDir = join(dir, "model");
    const adapters = join(dir, "adapters");
    await writeBenchModel(modelDir);
    for (let n = 1; n <= SWAPS + 1; n++) await writeBenchAdapter(join(adapters, "bench", `${n}`), n);
    server = await startOurs(modelDir, adapters);
    const { url } = server;
    const load = new StreamLoad(url, "bench@1");
    load.start();
    await load.answered(STREAMS);
    const swapMs: number[] = [];
    const idleMs: number[] = [];
    for (let n = 2; n <= SWAPS + 1; n++) {
      const version = `bench@${n}`;
      swapMs.push(await timeToAnswer(url, version));
      load.version = version;
      await load.answered(STREAMS);
    }
    await load.stop();
    for (let n = SWAPS + 1; n > 1; n--) idleMs.push(await timeToAnswer(url, `bench@${n - 1}`, "again"));
    const median = middle(swapMs);
    return {
      name,
      ratio: null,
      table: [
        {
          case: `adapter on disk → first answer, ${STREAMS} streams`,
          "median, ms": median,
          "worst, ms": Math.max(...swapMs),
        },
        { case: "the same, idle", "median, ms": middle(idleMs), "worst, ms": Math.max(...idleMs) },
        { case: "answers during the swaps", count: load.count, failed: load.failed, mixed: load.mixed },
      ],
      notes: [
        `4.7 M parameters, LoRA rank 16 on all linear layers, ${SWAPS} swaps; bar ${BAR_MS} ms: ${median <= BAR_MS ? "met" : "missed"}.`,
        "Mixed counts answers whose model is not the version that was asked for.",
      ],
    };
  } finally {
    await server?.close();
    await rm(dir, { recursive: true });
  }
}

/** From the request to load a version to the end of an answer of one token by it. */
async function timeToAnswer(url: string, version: string, suffix = ""): Promise<number> {
  const startMs = performance.now();
  const [policy = "", number = ""] = version.split("@");
  await post(url, "/v1/load_lora_adapter", {
    lora_name: `${policy}${suffix}@${number}`,
    lora_path: `${policy}/${number}`,
  });
  const answer = await ask(url, `${policy}${suffix}@${number}`, 1);
  if (answer !== `${policy}${suffix}@${number}`) throw new Error(`${version} was asked and ${answer} answered`);
  return performance.now() - startMs;
}

/** Streams of completions that follow the version set last. */
class StreamLoad {
  readonly #url: string;
  version: string;
  count = 0;
  failed = 0;
  mixed = 0;
  #isRunning = true;
  #streams: Promise<void>[] = [];
  #waiting: { readonly count: number; readonly resolve: () => void }[] = [];

  constructor(url: string, version: string) {
    this.#url = url;
    this.version = version;
  }

  start(): void {
    this.#streams = Array.from({ length: STREAMS }, () => this.#stream());
  }

  /** Resolves after so many further answers. */
  answered(count: number): Promise<void> {
    return new Promise((resolve) => {
      this.#waiting.push({ count: this.count + count, resolve });
    });
  }

  async stop(): Promise<void> {
    this.#isRunning = false;
    await Promise.all(this.#streams);
  }

  async #stream(): Promise<void> {
    while (this.#isRunning) {
      const { version } = this;
      try {
        if ((await ask(this.#url, version, 64)) !== version) this.mixed++;
      } catch {
        this.failed++;
      }
      this.count++;
      for (const each of this.#waiting.filter(({ count }) => count <= this.count)) each.resolve();
      this.#waiting = this.#waiting.filter(({ count }) => count > this.count);
    }
  }
}

let prompts = 0;

/** @returns the name of the version that answered */
async function ask(url: string, version: string, tokens: number): Promise<string> {
  const prompt = benchPrompt(prompts++, 60);
  const text = await post(url, "/v1/completions", { model: version, prompt, max_tokens: tokens, ignore_eos: true });
  return /"model":\s*"([^"]*)"/.exec(text)?.[1] ?? "";
}

async function post(url: string, path: string, body: unknown): Promise<string> {
  const response = await fetch(`${url}${path}`, { method: "POST", body: JSON.stringify(body) });
  const text = await response.text();
  if (!response.ok) throw new Error(`${path} answered ${response.status}: ${text.slice(0, 300)}`);
  return text;
}

function middle(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1] ?? NaN;
}
