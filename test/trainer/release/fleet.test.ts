import { describe, expect, it } from "vitest";
import { FulgurError } from "#shared/errors.ts";
import type { InferenceServerClient } from "#shared/inference-client.ts";
import { inferenceFleet } from "../../../trainer/release/fleet.ts";

/** A server that notes what is asked of it and fails as it is told. */
class Server implements InferenceServerClient {
  readonly asked: string[] = [];
  isUp = true;
  failing: { readonly what: string; readonly error: FulgurError } | undefined;
  readonly url: string;

  constructor(url: string) {
    this.url = url;
  }

  load = (name: string, folder: string) => this.#ask("load", `${name} ${folder}`);
  prove = (name: string) => this.#ask("prove", name);
  unload = (name: string) => this.#ask("unload", name);
  isHealthy = () => Promise.resolve(this.isUp);
  names = () => Promise.resolve(new Set<string>());

  #ask(what: string, which: string): Promise<void> {
    this.asked.push(`${what} ${which}`);
    return this.failing?.what === what ? Promise.reject(this.failing.error) : Promise.resolve();
  }
}

const refusal = new FulgurError("ERR_CHECKPOINT", "sha256 differs");

function fleet() {
  const one = new Server("http://one");
  const two = new Server("http://two");
  const warned: string[] = [];
  const client = inferenceFleet([one, two], { warn: (message) => warned.push(message), patienceMs: 50 });
  return { one, two, warned, client };
}

describe("inferenceFleet", () => {
  it("of one server is that server", () => {
    const server = new Server("http://one");
    expect(inferenceFleet([server], { warn: () => {} })).toBe(server);
  });

  it("has every server load, prove and unload a version", async () => {
    const { one, two, warned, client } = fleet();
    await client.load("flight@3", "/v/3");
    await client.prove("flight@3");
    await client.unload("flight@1");
    for (const { asked } of [one, two])
      expect(asked).toEqual(["load flight@3 /v/3", "prove flight@3", "unload flight@1"]);
    expect(warned).toEqual([]);
  });

  it("leaves a server that is away out of the release, says so once, and takes it back with the next version", async () => {
    const { one, two, warned, client } = fleet();
    two.isUp = false;
    await client.load("flight@3", "/v/3");
    await client.prove("flight@3");
    await client.load("flight@4", "/v/4");
    await client.prove("flight@4");
    expect(two.asked).toEqual([]);
    expect(one.asked).toHaveLength(4);
    expect(warned).toEqual([expect.stringMatching(/^inference at http:\/\/two is out of service \(load flight@3: /)]);

    two.isUp = true;
    await client.load("flight@5", "/v/5");
    await client.prove("flight@5");
    expect(two.asked).toEqual(["load flight@5 /v/5", "prove flight@5"]);
    expect(warned.slice(1)).toEqual(["inference at http://two is back: it has loaded flight@5"]);
  });

  it("leaves out one that refuses the artifact or answers as another version", async () => {
    for (const what of ["load", "prove"]) {
      const { two, warned, client } = fleet();
      two.failing = { what, error: refusal };
      await client.load("flight@3", "/v/3");
      await client.prove("flight@3");
      expect(two.asked.at(-1)).toMatch(new RegExp(`^${what}`));
      await client.unload("flight@1");
      expect(two.asked.at(-1)).not.toMatch(/^unload/);
      expect(warned).toHaveLength(1);
    }
  });

  it.each([
    ["load", (client: ReturnType<typeof fleet>["client"]) => client.load("flight@3", "/v/3")],
    ["prove", (client: ReturnType<typeof fleet>["client"]) => client.prove("flight@3")],
  ])("fails where no server can %s, with what one refused for good", async (what, ask) => {
    const { one, two, client } = fleet();
    one.failing = { what, error: new FulgurError("ERR_UPSTREAM", "away") };
    two.failing = { what, error: refusal };
    await expect(ask(client)).rejects.toMatchObject({
      code: "ERR_CHECKPOINT",
      message: `no inference server could ${what} flight@3: away; sha256 differs`,
    });
    // Repeated once they can, it succeeds.
    one.failing = undefined;
    two.failing = undefined;
    await client.load("flight@3", "/v/3");
    await client.prove("flight@3");
    expect([one.asked.at(-1), two.asked.at(-1)]).toEqual(["prove flight@3", "prove flight@3"]);
  });

  it("does not fail over a version that a server keeps: it costs that server memory alone", async () => {
    const { one, two, client } = fleet();
    one.failing = { what: "unload", error: new FulgurError("ERR_UPSTREAM", "away") };
    await expect(client.unload("flight@1")).resolves.toBeUndefined();
    expect(two.asked).toEqual(["unload flight@1"]);
  });
});
