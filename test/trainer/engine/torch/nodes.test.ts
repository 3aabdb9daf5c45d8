import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { Cotangent, Engine } from "../../../../trainer/engine/contract.ts";
import { createTorchEngine } from "../../../../trainer/engine/torch/engine.ts";
import { lendRanks } from "../../../../trainer/engine/torch/worker.ts";
import { sampleOf } from "../../../contract/engine.ts";
import { findPython } from "../../../oracle/python.ts";

/** Machines that train together give the numbers of one; here both are this one, and meet as two would. */

const MODEL = fileURLToPath(new URL("../../../oracle/fixtures/engine/llama", import.meta.url));
const python = findPython();

const samples = [19, 12, 9, 5, 3].map((length, i) => sampleOf(length, [1, 2, length - 1 - (i % 2)]));
const cotangents: Cotangent[] = samples.map(({ tokens }, i) => ({
  dLogprobs: Float32Array.from(tokens, (_, t) => -1 + 0.2 * ((t + i) % 5)),
}));

let dir = "";
let rendezvous = "";
let engines: Engine[] = [];
let children: ChildProcess[] = [];
let lending: { readonly stop: AbortController; readonly ended: ReturnType<typeof lendRanks> }[] = [];
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-nodes-"));
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  server.close();
  rendezvous = `127.0.0.1:${typeof address === "object" && address !== null ? address.port : 0}`;
});
afterEach(async () => {
  for (const { stop } of lending) stop.abort();
  for (const child of children) child.kill();
  await Promise.all([...engines.map((engine) => engine.close()), ...lending.map(({ ended }) => ended)]);
  [engines, lending, children] = [[], [], []];
  await rm(dir, { recursive: true, force: true });
});

async function make(given: Partial<Parameters<typeof createTorchEngine>[0]> = {}): Promise<Engine> {
  const engine = await createTorchEngine({
    modelDir: MODEL,
    method: { type: "full" },
    device: "cpu",
    maxTokensPerMicrobatch: 24,
    ...(python === null ? {} : { python }),
    ...given,
  });
  engines.push(engine);
  return engine;
}

/** The other machine. */
function lend(): (typeof lending)[number] {
  const stop = new AbortController();
  const among = { nodes: 2, node: 1, rendezvous };
  const options = { python: python ?? "", device: "cpu", devices: 1, threads: 1, among } as const;
  const lent = { stop, ended: lendRanks(options, stop.signal) };
  lending.push(lent);
  return lent;
}

/** `fulgur join`, as the operator of the other machine runs it. */
function joinCommand() {
  const args = ["cli/fulgur.js", "join", rendezvous, "--nodes", "2", "--node", "1", "--device", "cpu"];
  const child = spawn(process.execPath, [...args, "--python", python ?? ""], { stdio: ["ignore", "ignore", "pipe"] });
  children.push(child);
  let said = "";
  child.stderr.setEncoding("utf8").on("data", (text: string) => (said += text));
  return {
    child,
    exited: once(child, "exit"),
    says: (text: string) => vi.waitFor(() => expect(said).toContain(text), { timeout: 60_000, interval: 50 }),
  };
}

async function train(engine: Engine, steps: number): Promise<number[]> {
  const norms: number[] = [];
  for (let i = 0; i < steps; i++) {
    await engine.backward(samples, cotangents);
    norms.push((await engine.step({ learningRate: 0.01, maxGradNorm: 0.5 })).gradNorm);
  }
  return norms;
}

function expectClose(actual: readonly number[], expected: readonly number[]): void {
  expect(actual).toHaveLength(expected.length);
  for (const [at, value] of expected.entries()) {
    expect(Math.abs((actual[at] ?? NaN) - value) / value).toBeLessThan(1e-5);
  }
}

describe.skipIf(python === null)("two machines", () => {
  test(
    "pull and step as one does; when one is lost the trainer is told, and goes on from its checkpoint once it is back",
    { timeout: 300_000 },
    async () => {
      const one = await make();
      const expected = await train(one, 4);
      const first = lend();
      const two = await make({ nodes: 2, rendezvous });
      expectClose(await train(two, 2), expected.slice(0, 2));
      await two.save(join(dir, "at"));
      first.stop.abort();
      await first.ended;
      await expect(train(two, 1000)).rejects.toMatchObject({
        code: "ERR_INTERNAL",
        message: expect.stringMatching(
          /^Another rank of the torch worker is gone.*Start the trainer again: it goes on from its last checkpoint\.$/,
        ),
      });
      await two.close();
      const other = joinCommand();
      await other.says("waiting for the trainer");
      const again = await make({ nodes: 2, rendezvous });
      await again.load(join(dir, "at"));
      expectClose(await train(again, 2), expected.slice(2));
      await again.close();
      await other.says("ended: Another rank of the torch worker is gone");
      other.child.kill("SIGINT");
      expect(await other.exited).toEqual([0, null]);
    },
  );
});

test("says what is missing where only one of the two is given", async () => {
  for (const given of [{ nodes: 2 }, { rendezvous: "127.0.0.1:29500" }]) {
    await expect(make(given)).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringContaining("Several machines want both --nodes"),
    });
  }
});
