/** An endpoint on a free port for tests, and the few calls that tests make of it. */

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type InferenceConfig, parseInferenceConfig } from "../../../trainer/inference/config.ts";
import { startInferenceServer } from "../../../trainer/inference/server.ts";

/** A reply with its parsed body. */
export interface Reply {
  readonly status: number;
  readonly headers: Headers;
  readonly body: Record<string, unknown>;
}

/** A listening endpoint with a folder of its own. */
export interface TestEndpoint {
  readonly url: string;
  readonly dir: string;
  post(path: string, body: unknown): Promise<Reply>;
  get(path: string): Promise<Response>;
  close(): Promise<void>;
}

/**
 * Starts an endpoint.
 * @param prepare writes the model as `model` and adapters below `adapters` of the folder that it is given
 */
export async function startTestEndpoint(
  prepare: (dir: string) => Promise<void>,
  settings: Partial<InferenceConfig> = {},
): Promise<TestEndpoint> {
  const dir = await mkdtemp(join(tmpdir(), "fulgur-inference-"));
  await prepare(dir);
  const config = parseInferenceConfig({
    model: join(dir, "model"),
    adapterDir: join(dir, "adapters"),
    port: 0,
    threads: 1,
    ...settings,
  });
  const failures: Error[] = [];
  const server = await startInferenceServer(config, { fatal: (error) => failures.push(error) });
  return {
    url: server.url,
    dir,
    async post(path, body) {
      const response = await fetch(`${server.url}${path}`, {
        method: "POST",
        body: typeof body === "string" ? body : JSON.stringify(body),
      });
      const text = await response.text();
      const parsed: unknown = text.startsWith("{") ? JSON.parse(text) : { text };
      return { status: response.status, headers: response.headers, body: record(parsed) };
    },
    get: (path) => fetch(`${server.url}${path}`),
    async close() {
      await server.close();
      await rm(dir, { recursive: true });
      if (failures.length > 0) throw failures[0];
    },
  };
}

/** Posts and reads the events of a streamed reply, without the closing word. */
export async function postStream(
  endpoint: TestEndpoint,
  path: string,
  body: unknown,
): Promise<Record<string, unknown>[]> {
  const response = await fetch(`${endpoint.url}${path}`, { method: "POST", body: JSON.stringify(body) });
  const lines = (await response.text()).split("\n\n").filter((line) => line !== "");
  if (lines.at(-1) !== "data: [DONE]") throw new Error(`the stream ended with ${lines.at(-1) ?? "nothing"}`);
  return lines.slice(0, -1).map((line) => record(JSON.parse(line.slice("data: ".length))));
}

/** The value as an object with unknown members. */
export function record(value: unknown): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new TypeError("wanted an object");
  return { ...value };
}

/** The choices of a reply or an event. */
export function choicesOf(body: Record<string, unknown>): Record<string, unknown>[] {
  return Array.isArray(body["choices"]) ? body["choices"].map(record) : [];
}

/** The only choice of a reply or an event. */
export function choiceOf(body: Record<string, unknown>): Record<string, unknown> {
  return record(Array.isArray(body["choices"]) ? body["choices"][0] : undefined);
}

/** The value as a list of numbers. */
export function numbers(value: unknown): number[] {
  if (!Array.isArray(value)) throw new TypeError("wanted a list");
  return value.map(Number);
}
