import { spawn } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createTorchEngine } from "../../../../trainer/engine/torch/engine.ts";
import { startWorker } from "../../../../trainer/engine/torch/worker.ts";
import { sampleOf } from "../../../contract/engine.ts";
import { findPython } from "../../../oracle/python.ts";

/** What can go wrong with a worker is told in a sentence, and it never outlives its trainer. */

const MODEL = fileURLToPath(new URL("../../../oracle/fixtures/engine/llama", import.meta.url));
const ENGINE = new URL("../../../../trainer/engine/torch/engine.ts", import.meta.url).href;
const python = findPython();

let dir = "";
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-worker-"));
});
afterAll(() => rm(dir, { recursive: true, force: true }));

/** An interpreter that is a script of ours. */
async function interpreter(name: string, lines: readonly string[]): Promise<string> {
  const path = join(dir, name);
  await writeFile(path, `${lines.join("\n")}\n`);
  await chmod(path, 0o755);
  return path;
}

const open = (options: Partial<Parameters<typeof createTorchEngine>[0]>) =>
  createTorchEngine({ modelDir: MODEL, device: "cpu", ...options });

test("options that make no sense, and folders that are no model, are refused before anything is started", async () => {
  const start = (): never => {
    throw new Error("started");
  };
  const refused: [Parameters<typeof createTorchEngine>[0], string, RegExp][] = [
    [{ modelDir: MODEL, devices: 0 }, "ERR_CONFIG", /devices/],
    [{ modelDir: MODEL, temperature: -1 }, "ERR_CONFIG", /temperature/],
    [{ modelDir: "/nonexistent" }, "ERR_MODEL", /config\.json/],
  ];
  for (const [options, code, message] of refused) {
    await expect(createTorchEngine(options, start)).rejects.toMatchObject({
      code,
      message: expect.stringMatching(message),
    });
  }
  const gpt = join(dir, "gpt");
  await mkdir(gpt);
  const config: unknown = JSON.parse(await readFile(join(MODEL, "config.json"), "utf8"));
  await writeFile(join(gpt, "config.json"), JSON.stringify({ ...Object(config), model_type: "gpt2" }));
  await expect(createTorchEngine({ modelDir: gpt }, start)).rejects.toMatchObject({
    code: "ERR_MODEL",
    message: expect.stringContaining("gpt2"),
  });
});

test("a missing Python is named, with the command that installs one", async () => {
  await expect(open({ python: "/nonexistent/python" })).rejects.toMatchObject({
    code: "ERR_PLATFORM",
    message: expect.stringMatching(
      /^Cannot start \/nonexistent\/python .*fulgur doctor --engine torch.*pip install -r trainer\/engine\/torch\/requirements\.txt$/s,
    ),
  });
});

test("a worker that is out of memory says what needs less", async () => {
  const error = { code: "ERR_PLATFORM", message: "The device is out of memory (…).", out_of_memory: true };
  const path = await interpreter("full", [
    `#!${process.execPath}`,
    `const header = Buffer.from(JSON.stringify({ __metadata__: { message: JSON.stringify({ error: ${JSON.stringify(error)} }) } }));`,
    "const lengths = Buffer.alloc(16);",
    "lengths.writeBigUInt64LE(BigInt(8 + header.length));",
    "lengths.writeBigUInt64LE(BigInt(header.length), 8);",
    'const socket = new (require("node:net").Socket)({ fd: 3 });',
    'socket.on("data", () => socket.end(Buffer.concat([lengths, header])));',
  ]);
  await expect(open({ python: path })).rejects.toMatchObject({
    code: "ERR_PLATFORM",
    message: expect.stringMatching(/out of memory.*--microbatch-tokens.*--gradient-checkpointing.*last checkpoint/s),
  });
});

test("a worker that ends without a word is quoted", async () => {
  const path = await interpreter("crash", ["#!/bin/sh", "echo 'Illegal instruction' >&2", "exit 7"]);
  await expect(open({ python: path })).rejects.toMatchObject({
    code: "ERR_INTERNAL",
    message: expect.stringMatching(/ended \(exit code 7\).*Illegal instruction.*Start the trainer again/s),
  });
});

test("what libraries print comes nowhere near the answers", async () => {
  // A worker that floods its standard output, and answers nothing at all on it.
  const path = await interpreter("loud", ["#!/bin/sh", "head -c 300000 /dev/zero | tr '\\0' 'x'", "exit 3"]);
  await expect(open({ python: path })).rejects.toMatchObject({ message: expect.stringContaining("exit code 3") });
});

describe.skipIf(python === null)("with PyTorch", { timeout: 180_000 }, () => {
  const real = python === null ? {} : { python };

  test("a missing package is named", async () => {
    const path = await interpreter("bare", ["#!/bin/sh", `exec ${python} -S "$@"`]);
    await expect(open({ python: path })).rejects.toMatchObject({
      code: "ERR_PLATFORM",
      message: expect.stringMatching(/cannot import torch .*fulgur doctor --engine torch/),
    });
  });

  test("a GPU that is not there is refused by name", async () => {
    const hidden = await interpreter("hidden", ["#!/bin/sh", `CUDA_VISIBLE_DEVICES= exec ${python} "$@"`]);
    await expect(open({ python: hidden, device: "cuda" })).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringContaining("finds no CUDA device"),
    });
    const engine = await open({ python: hidden, device: "auto" });
    expect(engine.info).toMatchObject({ name: "torch", precision: "fp32", method: "lora" });
    await engine.close();
  });

  test("bf16 is near fp32, and dropout leaves scores alone and repeats after a checkpoint", async () => {
    const samples = [sampleOf(12, [2, 3, 7, 11])];
    const cotangents = samples.map(({ tokens }) => ({ dLogprobs: new Float32Array(tokens.length).fill(-1) }));
    const lora = { type: "lora", rank: 4 } as const;
    const exact = await open({ ...real, method: lora });
    const half = await open({ ...real, method: { ...lora, dropout: 0.5 }, precision: "bf16" });
    expect(half.info.precision).toBe("bf16");
    const [[expected], [rounded]] = [await exact.score(samples), await half.score(samples)];
    const apart = [2, 3, 7, 11].map((t) => Math.abs((expected?.logprobs[t] ?? NaN) - (rounded?.logprobs[t] ?? NaN)));
    // Eight bits of mantissa through two layers of logits near 1; not the same numbers either.
    expect(Math.max(...apart)).toBeLessThan(0.1);
    expect(Math.max(...apart)).toBeGreaterThan(0);
    expect(await half.score(samples)).toEqual([rounded]);

    const advance = async (): Promise<number> => {
      await half.backward(samples, cotangents);
      return (await half.step({ learningRate: 0.01, maxGradNorm: 1 })).gradNorm;
    };
    await advance();
    await half.save(join(dir, "at"));
    const norms = [await advance(), await advance()];
    expect(norms[0]).not.toBe(norms[1]);
    await half.load(join(dir, "at"));
    expect([await advance(), await advance()]).toEqual(norms);
    await Promise.all([exact.close(), half.close()]);
  });

  test("ends with the trainer, however that ends, and not before", async () => {
    const script = `
      import { createTorchEngine } from ${JSON.stringify(ENGINE)};
      import { execFileSync } from "node:child_process";
      const engine = await createTorchEngine({
        modelDir: ${JSON.stringify(MODEL)}, device: "cpu", python: ${JSON.stringify(python)},
      });
      const pid = Number(execFileSync("ps", ["-o", "pid=,args=", "--ppid", String(process.pid)], { encoding: "utf8" })
        .split("\\n").find((line) => line.includes("-m worker")).trim().split(" ")[0]);
      // As Ctrl-C in a terminal does, which reaches every process of the group.
      process.kill(pid, "SIGINT");
      process.kill(pid, "SIGTERM");
      await engine.score([{ tokens: Int32Array.of(1, 2), lossMask: Uint8Array.of(0, 1) }]);
      console.log(pid);
      setInterval(() => {}, 1000);`;
    const trainer = spawn(process.execPath, ["--eval", script], { stdio: ["ignore", "pipe", "inherit"] });
    const lines = createInterface({ input: trainer.stdout })[Symbol.asyncIterator]();
    const pid = Number((await lines.next()).value);
    expect(pid).toBeGreaterThan(0);
    expect(isRunning(pid)).toBe(true);
    const ended = once(trainer, "exit");
    trainer.kill("SIGKILL");
    await ended;
    await expect.poll(() => isRunning(pid), { timeout: 10_000 }).toBe(false);
  });

  test("closing it ends it, also in the middle of its start", async () => {
    const worker = await startWorker({ python: python ?? "", device: "cpu", devices: 1, threads: 1 });
    await worker.close();
    await expect(worker.ask({ message: { command: "step" }, tensors: new Map() })).rejects.toThrow("closed");
  });
});

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
