import { describe, expect, it } from "vitest";
import { FulgurError } from "#shared/errors.ts";
import type { InferenceServerClient } from "#shared/inference-client.ts";
import { inferenceServers, type InferenceServers, type Reach } from "../../../edge/proxy/servers.ts";

const URLS = ["http://a:1", "http://b:1", "http://c:1"];
const ROLLOUTS = Array.from({ length: 60 }, (_, at) => `ro_${at}`);
const VERSION = { tenantId: "t", policy: "flight", version: 3 };
const BROKEN = { status: undefined, reason: "connection refused" };
const UNKNOWN = { status: 404, reason: "no such model" };
const FULL = { status: 429, reason: "full" };

/** The servers' other side, a clock, and the work that goes on beside calls. */
function world(urls = URLS) {
  const loaded: string[] = [];
  const healthy = new Set(urls);
  const held = new Map<string, Set<string>>(urls.map((url) => [url, new Set<string>()]));
  const refusing = new Set<string>();
  const beside: Promise<unknown>[] = [];
  const clock = { now: 1_000_000 };
  const admin = (url: string): InferenceServerClient => ({
    url,
    isHealthy: () => Promise.resolve(healthy.has(url)),
    names: () => Promise.resolve(held.get(url) ?? new Set()),
    async load(name, folder) {
      loaded.push(`${name} from ${folder} at ${url}`);
      clock.now += 1;
      if (refusing.has(url)) throw new FulgurError("ERR_CHECKPOINT", "torn");
      held.get(url)?.add(name);
    },
    unload: () => Promise.reject(new Error("not to be asked")),
    prove: () => Promise.reject(new Error("not to be asked")),
  });
  const reach: Reach = {
    admin,
    artifactOf: ({ policy, version }) => Promise.resolve(`/versions/${policy}/${version}`),
    now: () => clock.now,
    later: (work) => void beside.push(work),
  };
  const servers = inferenceServers(urls);
  return {
    servers,
    loaded,
    healthy,
    held,
    refusing,
    clock,
    call: (rolloutId: string) => servers.forCall(VERSION, { rolloutId, reach }),
    /** What was begun beside calls has ended. */
    settled: async () => {
      await Promise.all(beside.splice(0));
    },
  };
}

const choices = (call: ReturnType<typeof world>["call"]): string[] => ROLLOUTS.map((id) => call(id).url());
const inService = (servers: InferenceServers): boolean[] => servers.states().map((state) => state.inService);

describe("inferenceServers", () => {
  it("sends every call of a rollout to one server, and rollouts to all of them", () => {
    const { call } = world();
    const first = choices(call);
    expect(choices(call)).toEqual(first);
    expect(new Set(first)).toEqual(new Set(URLS));
  });

  it("goes on with the others where a connection breaks, and moves that server's rollouts alone", async () => {
    const { servers, call } = world();
    const before = choices(call);
    const asking = call("ro_0");
    const broken = asking.url();
    expect(await asking.failed(BROKEN)).toBe(true);
    expect(asking.url()).not.toBe(broken);
    expect(inService(servers)).toEqual(URLS.map((url) => url !== broken));
    choices(call).forEach((now, at) => {
      if (before[at] === broken) expect(now).not.toBe(broken);
      else expect(now).toBe(before[at]);
    });
  });

  it("takes a server back once it is healthy and has loaded what the others answer", async () => {
    const { servers, call, held, loaded, clock, healthy, settled } = world();
    const before = choices(call);
    await settled();
    const asking = call("ro_0");
    const broken = asking.url();
    healthy.delete(broken);
    await asking.failed(BROKEN);
    asking.url();
    asking.answered();
    await settled();
    expect(inService(servers)).toContain(false);

    // Started again, it has nothing; until it is looked at, nobody is sent there.
    healthy.add(broken);
    held.get(broken)?.clear();
    clock.now += 1000;
    expect(call("ro_0").url()).not.toBe(broken);
    await settled();
    expect(loaded).toEqual([`t~flight@3 from /versions/flight/3 at ${broken}`]);
    expect(inService(servers)).toEqual([true, true, true]);
    expect(choices(call)).toEqual(before);
  });

  it("keeps a server out while it cannot load what the others answer", async () => {
    const { servers, call, refusing, clock, settled } = world();
    const asking = call("ro_0");
    const broken = asking.url();
    refusing.add(broken);
    await asking.failed(BROKEN);
    asking.url();
    asking.answered();
    for (const within of [0, 1000, 2000]) {
      clock.now += within;
      choices(call);
      await settled();
      expect(inService(servers)).toContain(false);
    }
    // A version that nobody has answered for a while is not waited for.
    clock.now += 21_000;
    choices(call);
    await settled();
    expect(inService(servers)).toEqual([true, true, true]);
  });

  it("notices beside the calls that a server is no longer healthy", async () => {
    const { servers, call, healthy, clock, settled } = world();
    choices(call);
    await settled();
    healthy.delete("http://b:1");
    clock.now += 5001;
    choices(call);
    await settled();
    expect(inService(servers)).toEqual([true, false, true]);
    expect(choices(call)).not.toContain("http://b:1");
  });

  it("asks all of them in turn where one is full, then waits and begins again", async () => {
    const { servers, call } = world();
    const asking = call("ro_0");
    const asked = [asking.url()];
    expect(await asking.failed(FULL)).toBe(true);
    asked.push(asking.url());
    expect(await asking.failed(FULL)).toBe(true);
    asked.push(asking.url());
    expect(await asking.failed(FULL)).toBe(false);
    expect(new Set(asked)).toEqual(new Set(URLS));
    expect(asking.url()).toBe(asked[0]);
    expect(inService(servers)).toEqual([true, true, true]);
    expect(asking.maxAttempts).toBe(6);
  });

  it("tries all of them in turn where none is in service: what it knows may be old", async () => {
    const { call } = world();
    const asking = call("ro_0");
    const asked = [];
    for (const _ of URLS) {
      asked.push(asking.url());
      await asking.failed(BROKEN);
    }
    expect(new Set(asked)).toEqual(new Set(URLS));
    expect(URLS).toContain(asking.url());
  });

  it("has a server that does not know the version load it, once for calls that lack it at once, and asks it again", async () => {
    const { servers, call, loaded } = world();
    const asking = ROLLOUTS.map(call);
    const url = asking[0]?.url();
    const there = asking.filter((one) => one.url() === url);
    expect(await Promise.all(there.map((one) => one.failed(UNKNOWN)))).toEqual(there.map(() => true));
    expect(loaded).toEqual([`t~flight@3 from /versions/flight/3 at ${url}`]);
    expect(new Set(there.map((one) => one.url()))).toEqual(new Set([url]));
    expect(inService(servers)).toEqual([true, true, true]);
  });

  it("asks another where a server cannot load the version, and does not take it out for that: the version may be gone", async () => {
    const { servers, call, refusing } = world();
    const asking = call("ro_0");
    const url = asking.url();
    refusing.add(url);
    expect(await asking.failed(UNKNOWN)).toBe(true);
    expect(asking.url()).not.toBe(url);
    expect(inService(servers)).toEqual([true, true, true]);
  });

  it("with one server asks only it, has it load what it lacks, and leaves waiting to the retry", async () => {
    const { servers, call, loaded, refusing } = world(["http://a:1"]);
    const asking = call("ro_0");
    expect(asking.url()).toBe("http://a:1");
    expect(await asking.failed(BROKEN)).toBe(false);
    expect(await asking.failed(FULL)).toBe(false);
    expect(inService(servers)).toEqual([true]);
    expect(await asking.failed(UNKNOWN)).toBe(true);
    expect(loaded).toEqual(["t~flight@3 from /versions/flight/3 at http://a:1"]);
    // Loaded and still not known: it is not asked for ever.
    expect(await asking.failed(UNKNOWN)).toBe(false);
    refusing.add("http://a:1");
    const other = call("ro_1");
    other.url();
    expect(await other.failed(UNKNOWN)).toBe(false);
    expect(loaded).toHaveLength(2);
    expect(asking.maxAttempts).toBe(4);
  });
});
