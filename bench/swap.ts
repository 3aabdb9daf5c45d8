import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type BenchShape,
  benchPrompt,
  BUILT_IN,
  FIVE_MILLION,
  writeBenchAdapter,
  writeBenchModel,
} from "./decode-parts/model.ts";
import { type BenchServer, startOurs } from "./decode-parts/servers.ts";
import type { BenchResult } from "./result.ts";

/**
 * A new version under load: 32 streams ask the version before all the time; how long from an adapter that lies on disk
 * to the first whole answer by it, and does any stream fail or mix versions?
 */

export const name = "swap";

const STREAMS = 32;
const SWAPS = 8;
const BAR_MS = 100;

/** Runs the benchmark; there is no peer, so there is no ratio. */
export async function run(): Promise<BenchResult> {
  const table = [await swapUnderLoad("built-in shape, 0.7 M", BUILT_IN), await swapUnderLoad("4.7 M", FIVE_MILLION)];
  const notes = [
    `LoRA rank 16 on all linear layers, ${SWAPS} swaps while ${STREAMS} streams run; from the adapter on disk to the first whole answer. Bar: the worst within ${BAR_MS} ms.`,
    "Mixed counts answers whose model is not the version that was asked for.",
  ];
  return { name, ratio: null, table, notes };
}

async function swapUnderLoad(title: string, shape: BenchShape): Promise<Record<string, unknown>> {
  const dir = await mkdtemp(join(tmpdir(), "fulgur-bench-swap-"));
  let server: BenchServer | undefined;
  try {
    const modelDir = join(dir, "model");
    const adapters = join(dir, "adapters");
    await writeBenchModel(modelDir, shape);
    for (let n = 1; n <= SWAPS + 1; n++) await writeBenchAdapter(join(adapters, "bench", `${n}`), n, shape);
    server = await startOurs(modelDir, adapters);
    const { url } = server;
    const load = new StreamLoad(url, "bench@1");
    load.start();
    await load.answered(STREAMS);
    const swapMs: number[] = [];
    for (let n = 2; n <= SWAPS + 1; n++) {
      const version = `bench@${n}`;
      swapMs.push(await timeToAnswer(url, version));
      load.version = version;
      await load.answered(STREAMS);
    }
    await load.stop();
    const idleMs: number[] = [];
    for (let n = 2; n <= SWAPS + 1; n++) idleMs.push(await timeToAnswer(url, `again@${n}`, `bench/${n}`));
    const worst = Math.max(...swapMs);
    return {
      model: title,
      "median, ms": middle(swapMs),
      "worst, ms": worst,
      "idle median, ms": middle(idleMs),
      answers: load.count,
      failed: load.failed,
      mixed: load.mixed,
      bar: worst <= BAR_MS ? "met" : "missed",
    };
  } finally {
    await server?.close();
    await rm(dir, { recursive: true });
  }
}

/** From the request to load a version to the end of an answer of one token by it. */
async function timeToAnswer(url: string, version: string, path = version.replace("@", "/")): Promise<number> {
  const startMs = performance.now();
  await post(url, "/v1/load_lora_adapter", { lora_name: version, lora_path: path });
  const answer = await ask(url, version, 1);
  if (answer !== version) throw new Error(`${version} was asked and ${answer} answered`);
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
