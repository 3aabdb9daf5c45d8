import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { parseInferenceArguments } from "../../../trainer/inference/config.ts";
import { writeTinyModel } from "./tiny-model.ts";

const MAIN = fileURLToPath(new URL("../../../trainer/inference/main.ts", import.meta.url));
let dir = "";
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-inference-main-"));
  await writeTinyModel(join(dir, "model"));
});
afterAll(() => rm(dir, { recursive: true }));

test("it says where it listens, finishes what runs on SIGTERM, and ends with 0", async () => {
  const child = run("--model", join(dir, "model"), "--port", "0", "--threads", "1");
  const exited = once(child, "exit");
  const [line = ""] = await once(createInterface({ input: child.stdout ?? process.stdin }), "line");
  const url = /^inference listening on (http:\/\/127\.0\.0\.1:\d+)$/.exec(String(line))?.[1];
  expect(url).toBeDefined();
  const body = {
    model: "base",
    messages: [{ role: "user", content: "hi" }],
    max_tokens: 400,
    ignore_eos: true,
    stream: true,
  };
  const response = await fetch(`${url ?? ""}/v1/chat/completions`, { method: "POST", body: JSON.stringify(body) });
  // Headers are here, so it runs; now it is told to stop.
  child.kill("SIGTERM");
  expect(await response.text()).toMatch(/"finish_reason":"length".*\n\ndata: \[DONE\]\n\n$/s);
  expect(await exited).toEqual([0, null]);
});

test("a port that is taken is said in one sentence", async () => {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  const port = typeof address === "object" && address !== null ? address.port : 0;
  expect(await failure("--model", join(dir, "model"), "--port", `${port}`, "--threads", "1")).toBe(
    `inference: Port ${port} on 127.0.0.1 is taken; choose another with --port.\n`,
  );
  server.close();
});

test("a folder that is no model is said in one sentence", async () => {
  expect(await failure("--model", dir)).toMatch(/^inference: Cannot read .*tokenizer\.json .*\n$/);
});

test("settings have defaults and bounds, and mistakes are named", () => {
  expect(parseInferenceArguments(["--model", "m"])).toMatchObject({
    model: "m",
    port: 8788,
    host: "127.0.0.1",
    servedModelName: "base",
  });
  expect(() => parseInferenceArguments([])).toThrow(/--model/);
  expect(() => parseInferenceArguments(["--model", "m", "--port", "99999"])).toThrow(/--port: .*See --help/);
  expect(() => parseInferenceArguments(["--model", "m", "--prot", "1"])).toThrow(
    /unknown option '--prot'.*See --help/s,
  );
});

function run(...args: string[]): ChildProcess {
  return spawn(process.execPath, [MAIN, ...args], { stdio: ["ignore", "pipe", "pipe"] });
}

async function failure(...args: string[]): Promise<string> {
  const child = run(...args);
  const said: Buffer[] = [];
  child.stderr?.on("data", (part: Buffer) => said.push(part));
  const [code] = await once(child, "close");
  expect(code).toBe(1);
  return Buffer.concat(said).toString("utf8");
}
