import { describe, expect, it } from "vitest";
import {
  allowedEndpoint,
  endpointOf,
  MAX_ATTEMPTS,
  sendToEndpoint,
  setFields,
  type SendOptions,
} from "../../../../edge/routes/agl/endpoint.ts";

const endpoint = (name: string) => ({ model: "m", endpoint: name, version: 0 });

describe("endpointOf", () => {
  it("gives a rollout the same endpoint in whatever order they are, and rollouts different ones", async () => {
    const three = ["http://c", "http://a", "http://b"].map(endpoint);
    const chosen = new Set<string>();
    for (let rollout = 0; rollout < 30; rollout++) {
      const one = await endpointOf(three, `r${rollout}`);
      expect(await endpointOf(three.toReversed(), `r${rollout}`)).toEqual(one);
      chosen.add(one?.endpoint ?? "none");
    }
    expect(chosen).toEqual(new Set(["http://a", "http://b", "http://c"]));
  });

  // int.from_bytes(hashlib.sha256(id).digest()[:8], "big") mod 3, by Python.
  it.each([
    ["rollout-1", 1],
    ["0adff42a", 1],
    ["x", 0],
  ])("gives %s the endpoint that Agent Lightning does", async (rolloutId, at) => {
    const three = ["http://a", "http://b", "http://c"].map(endpoint);
    expect(await endpointOf(three, rolloutId)).toEqual(three[at]);
  });

  it("has nothing to choose from nothing", async () => {
    expect(await endpointOf([], "r")).toBeUndefined();
  });
});

describe("setFields", () => {
  it("asks for log-probabilities only where they are trained on", () => {
    expect(setFields("m", "train")).toEqual({ model: "m", temperature: 1, return_token_ids: true, logprobs: true });
    expect(setFields("m", "val")).toEqual({ model: "m", temperature: 0.7, return_token_ids: true });
  });
});

describe("allowedEndpoint", () => {
  const bases = ["http://10.0.0.5:8000", "http://vllm"];
  it.each([
    ["http://127.0.0.1:8000/v1/", true, "http://127.0.0.1:8000/v1"],
    ["http://10.0.0.5:8000/v1", false, "http://10.0.0.5:8000/v1"],
    ["http://vllm/v1", false, "http://vllm/v1"],
  ])("%s may be called (on one machine: %s)", (address, local, url) => {
    expect(allowedEndpoint(address, { local, bases })).toBe(url);
  });

  it("a public one may be called where the operator keeps no list", () => {
    expect(allowedEndpoint("https://models.example.com/v1/", { local: false })).toBe("https://models.example.com/v1");
    expect(() => allowedEndpoint("https://models.example.com/v1", { local: false, bases })).toThrow("UPSTREAM_BASES");
  });

  it.each([
    ["http://127.0.0.1:8000/v1", false],
    ["http://169.254.169.254/v1", true],
    ["http://10.0.0.5:80001/v1", true],
    ["http://vllm.evil.example/v1", true],
    ["https://10.1.1.1/v1", true],
    ["file:///etc/passwd", true],
    ["https://user:secret@models.example.com/v1", true],
    ["not a url", true],
  ])("%s may not (on one machine: %s)", (address, local) => {
    expect(() => allowedEndpoint(address, { local, bases })).toThrow("UPSTREAM_BASES");
  });
});

describe("sendToEndpoint", () => {
  /** Answers in turn; a text throws. */
  function scripted(...answers: readonly (Response | string)[]) {
    const waits: number[] = [];
    let asked = 0;
    const options: SendOptions = {
      url: () => "http://endpoint/v1/chat/completions",
      body: "{}",
      signal: new AbortController().signal,
      random: () => 0.5,
      sleep: async (ms) => void waits.push(ms),
      fetch: async (_url, init) => {
        expect(init).toMatchObject({ method: "POST", body: "{}", redirect: "manual" });
        const answer = answers[asked++];
        if (answer instanceof Response) return answer;
        throw new TypeError(answer);
      },
    };
    return { options, waits, asked: () => asked };
  }
  const json = (status: number, body: unknown = { status }): Response => Response.json(body, { status });

  it("repeats what may pass, waiting twice as long each time, and gives what came at last", async () => {
    const { options, waits } = scripted(json(503), json(429), "reset", json(408), json(409), json(200, { ok: true }));
    expect(await sendToEndpoint(options)).toEqual({ status: 200, body: { ok: true }, attempts: 6 });
    expect(waits).toEqual([500, 1000, 2000, 4000, 8000]);
  });

  it("gives the last answer when the endpoint stays away", async () => {
    const { options } = scripted(...Array.from({ length: MAX_ATTEMPTS }, () => json(503)));
    expect(await sendToEndpoint(options)).toEqual({ status: 503, body: { status: 503 }, attempts: MAX_ATTEMPTS });
  });

  it.each([400, 401, 404, 422])("does not repeat a %i", async (status) => {
    const { options, asked } = scripted(json(status));
    expect(await sendToEndpoint(options)).toEqual({ status, body: { status }, attempts: 1 });
    expect(asked()).toBe(1);
  });

  it("says that nothing answered, and when it was time that was missing", async () => {
    const { options } = scripted(...Array.from({ length: MAX_ATTEMPTS }, () => "refused"));
    await expect(sendToEndpoint(options)).rejects.toMatchObject({ code: "ERR_UPSTREAM" });
    const slow = { ...options, fetch: () => Promise.reject(new DOMException("late", "TimeoutError")) };
    await expect(sendToEndpoint(slow)).rejects.toMatchObject({ code: "ERR_TIMEOUT" });
  });

  it("follows no redirect and does not ask again", async () => {
    const { options, asked } = scripted(new Response(null, { status: 307, headers: { location: "http://10.0.0.1/" } }));
    await expect(sendToEndpoint(options)).rejects.toMatchObject({ code: "ERR_UPSTREAM" });
    expect(asked()).toBe(1);
  });

  it("makes an empty object of what is not one", async () => {
    for (const text of ["", "<html>", "[1]", "null"]) {
      const { options } = scripted(new Response(text));
      expect((await sendToEndpoint(options)).body).toEqual({});
    }
  });

  it("stops when the client has gone, while it asks and while it waits", async () => {
    const gone = new Error("gone");
    const asking = new AbortController();
    const { options } = scripted();
    await expect(
      sendToEndpoint({
        ...options,
        signal: asking.signal,
        fetch: () => {
          asking.abort(gone);
          return Promise.reject(new Error("cancelled"));
        },
      }),
    ).rejects.toBe(gone);
    const waiting = new AbortController();
    const busy = scripted(json(503), json(200));
    await expect(
      sendToEndpoint({ ...busy.options, signal: waiting.signal, sleep: async () => waiting.abort(gone) }),
    ).rejects.toBe(gone);
    expect(busy.asked()).toBe(1);
  });
});
