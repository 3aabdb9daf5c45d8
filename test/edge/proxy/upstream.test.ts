import { describe, expect, it } from "vitest";
import { limits } from "../../../edge/proxy/limits.ts";
import { askInference, UpstreamError, type FailedAttempt, type UpstreamOptions } from "../../../edge/proxy/upstream.ts";

type Step = Response | Error | ((signal: AbortSignal | null | undefined) => Promise<Response>);

/** An endpoint that does one step a request, and the waits in between. */
function scripted(steps: readonly Step[]) {
  const waits: number[] = [];
  let asked = 0;
  const send: typeof fetch = async (_input, init) => {
    const step = steps[asked++];
    if (step === undefined) throw new Error(`asked ${asked} times, ${steps.length} were expected`);
    if (step instanceof Error) throw step;
    return typeof step === "function" ? step(init?.signal) : step;
  };
  const ending = new AbortController();
  return {
    waits,
    ending,
    asked: () => asked,
    ask: (options: Partial<Pick<UpstreamOptions<string>, "timeoutMs" | "url" | "failed">> = {}) =>
      askInference({
        url: "http://inference/v1/chat/completions",
        body: "{}",
        fetch: send,
        ending,
        limits: limits({ lookEveryMs: 5 }),
        read: (response) => response.text(),
        random: () => 0.5,
        sleep: async (ms) => void waits.push(ms),
        ...options,
      }),
  };
}

const ok = (): Response => new Response("fine");
const status = (code: number, headers: Record<string, string> = {}): Response =>
  new Response(JSON.stringify({ error: { message: `said ${code}` } }), { status: code, headers });

describe("askInference", () => {
  it("asks once where the first answer is good", async () => {
    const endpoint = scripted([ok()]);
    await expect(endpoint.ask()).resolves.toEqual({ value: "fine", attempts: 1 });
    expect(endpoint.waits).toEqual([]);
  });

  it.each([408, 409, 429, 500, 502, 503, 504])("asks again after %i", async (code) => {
    await expect(scripted([status(code), ok()]).ask()).resolves.toEqual({ value: "fine", attempts: 2 });
  });

  it.each([401, 403, 404, 418])("does not ask again after %i", async (code) => {
    const endpoint = scripted([status(code)]);
    await expect(endpoint.ask()).rejects.toMatchObject({ code: "ERR_UPSTREAM", attempts: 1 });
    expect(endpoint.asked()).toBe(1);
  });

  it("tells the agent what inference says of its request", async () => {
    await expect(scripted([status(400)]).ask()).rejects.toMatchObject({
      code: "ERR_INVALID_REQUEST",
      message: "inference refused the request: said 400",
    });
  });

  it("waits longer each time, with jitter, and gives up after four attempts", async () => {
    const endpoint = scripted([new Error("refused"), new Error("refused"), new Error("refused"), new Error("refused")]);
    await expect(endpoint.ask()).rejects.toMatchObject({ code: "ERR_UPSTREAM", attempts: 4 });
    expect(endpoint.waits).toEqual([100, 200, 400]);
  });

  it("waits as long as Retry-After says", async () => {
    const endpoint = scripted([status(429, { "retry-after": "2" }), ok()]);
    await endpoint.ask();
    expect(endpoint.waits).toEqual([2000]);
  });

  it("passes a long Retry-After on instead of waiting for it", async () => {
    const endpoint = scripted([status(429, { "retry-after": "30" })]);
    const failure: unknown = await endpoint.ask().catch((thrown: unknown) => thrown);
    expect(failure).toBeInstanceOf(UpstreamError);
    expect(failure).toMatchObject({ code: "ERR_OVERLOADED", retryAfterSeconds: 30 });
  });

  it("asks elsewhere at once where it is told to, and waits where it is not", async () => {
    const endpoint = scripted([
      status(429, { "retry-after": "30" }),
      new Error("reset"),
      status(404),
      status(503),
      ok(),
    ]);
    const failures: FailedAttempt[] = [];
    const failed = (attempt: FailedAttempt): Promise<boolean> => {
      failures.push(attempt);
      return Promise.resolve(attempt.status !== 503);
    };
    const urls = ["http://a/v1", "http://b/v1", "http://c/v1", "http://d/v1"];
    const outcome = endpoint.ask({ url: () => urls.shift() ?? "", failed, timeoutMs: 60_000 });
    await expect(outcome).rejects.toMatchObject({ code: "ERR_UPSTREAM", attempts: 4, status: 503 });
    // After the last attempt nobody is asked what to do.
    expect(failures.map(({ status }) => status)).toEqual([429, undefined, 404]);
    expect(failures[1]?.reason).toContain("http://b did not answer");
    expect(endpoint.waits).toEqual([]);
  });

  it("asks again when the connection breaks while the answer is read", async () => {
    const broken = new Response(new ReadableStream({ pull: (c) => c.error(new Error("reset")) }));
    await expect(scripted([broken, ok()]).ask()).resolves.toMatchObject({ attempts: 2 });
  });

  it("gives up at once when the client leaves", async () => {
    const endpoint = scripted([
      async (signal) => {
        endpoint.ending.abort(new Error("gone"));
        throw signal?.reason;
      },
    ]);
    await expect(endpoint.ask()).rejects.toThrow("gone");
    expect(endpoint.asked()).toBe(1);
  });

  it("does not double the load of an endpoint that is too slow", async () => {
    const endpoint = scripted([
      (signal) => new Promise((_, reject) => signal?.addEventListener("abort", () => reject(new Error("aborted")))),
    ]);
    await expect(endpoint.ask({ timeoutMs: 10 })).rejects.toMatchObject({ code: "ERR_TIMEOUT", attempts: 1 });
  });
});
