import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { connectStore } from "#shared/store/connect.ts";
import { createPolicy, registerVersion, routePolicy } from "#shared/store/policies.ts";
import { transact } from "#shared/store/statement.ts";
import { resolver, type ResolveRequest } from "../../../edge/proxy/resolve.ts";
import { startTestStore, type TestStore } from "../../support/store.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startTestStore();
});
afterAll(() => store.stop());

const TENANT = "default";

/** A policy with versions 0 and 1, routed to 0, and requests for it at a time. */
async function policy(name: string) {
  const version = { tenantId: TENANT, kind: "adapter", artifact: "models/x", sha256: "0".repeat(64) } as const;
  await transact(store.writer, createPolicy({ ...version, name }, 1));
  await transact(store.writer, registerVersion({ ...version, policy: name, version: 1, createdAt: 1 }));
  let reads = 0;
  const beside: Promise<unknown>[] = [];
  const request = (now: number, change: Partial<Pick<ResolveRequest, "route" | "modelAsked">> = {}, pin?: string) => ({
    db: () => {
      reads++;
      return store.db;
    },
    principal: { tenantId: TENANT, scopes: ["call" as const], jti: "j", expiresAtSeconds: 9 },
    rollout: {
      rolloutId: "ro_1",
      attempt: 1,
      agent: "a",
      mode: "train" as const,
      pin: pin ?? null,
      caps: { maxCalls: 1, maxTokens: 1 },
    },
    route: { policy: name, role: "main" },
    modelAsked: "any",
    now,
    later: (work: Promise<unknown>) => void beside.push(work),
    ...change,
  });
  return { request, reads: () => reads, beside: () => Promise.all(beside) };
}

describe("a routed policy's version", () => {
  it("is read once, and looked at again beside a call, not before it and not by each", async () => {
    const { request, reads, beside } = await policy("p1");
    const resolves = resolver();
    expect(await resolves.resolve(request(1000))).toEqual({ policy: "p1", version: 0 });
    await resolves.resolve(request(1249));
    expect(reads()).toBe(1);
    await transact(store.writer, routePolicy(TENANT, "p1", 1));
    expect(await resolves.resolve(request(1250))).toEqual({ policy: "p1", version: 0 });
    expect(await resolves.resolve(request(1251))).toEqual({ policy: "p1", version: 0 });
    await beside();
    expect(reads()).toBe(2);
    expect(await resolves.resolve(request(1300))).toEqual({ policy: "p1", version: 1 });
    expect(reads()).toBe(2);
  });

  it("is not gone on with for longer than half a second", async () => {
    const { request, reads } = await policy("p2");
    const resolves = resolver();
    await resolves.resolve(request(1000));
    await transact(store.writer, routePolicy(TENANT, "p2", 1));
    expect(await resolves.resolve(request(1500))).toEqual({ policy: "p2", version: 1 });
    expect(reads()).toBe(2);
  });

  it("is not taken from a look that began before the route was forgotten", async () => {
    const { request, beside } = await policy("p3");
    const resolves = resolver();
    await resolves.resolve(request(1000));
    await resolves.resolve(request(1300));
    resolves.forget(TENANT, "p3");
    await beside();
    await transact(store.writer, routePolicy(TENANT, "p3", 1));
    expect(await resolves.resolve(request(1301))).toEqual({ policy: "p3", version: 1 });
  });
});

describe("while the store is away", () => {
  const away = () => connectStore({ url: "http://127.0.0.1:9", token: "none" });

  it("the route that was known last holds, no call after the first waits for a look, and a look that succeeds ends it", async () => {
    const { request, reads, beside } = await policy("p6");
    const resolves = resolver();
    await resolves.resolve(request(1000));
    expect(await resolves.resolve({ ...request(2000), db: away })).toEqual({ policy: "p6", version: 0 });
    await transact(store.writer, routePolicy(TENANT, "p6", 1));
    // Its look is beside it: were it waited for, it would be version 1.
    expect(await resolves.resolve(request(2250))).toEqual({ policy: "p6", version: 0 });
    await beside();
    expect(reads()).toBe(2);
    expect(await resolves.resolve(request(2251))).toEqual({ policy: "p6", version: 1 });
  });

  it("what is not known is to be asked for again", async () => {
    const { request } = await policy("p7");
    const resolves = resolver();
    for (const change of [{}, { modelAsked: "p7@1" }]) {
      await expect(resolves.resolve({ ...request(1000, change), db: away })).rejects.toMatchObject({
        code: "ERR_STORE",
        retryAfterSeconds: 1,
      });
    }
    expect(await resolves.resolve(request(1000))).toEqual({ policy: "p7", version: 0 });
  });
});

describe("a version that is named", () => {
  it("answers where a token pins it or the agent asks for it, unless the agent's map leads that name elsewhere", async () => {
    const { request } = await policy("p4");
    await policy("p5");
    const resolves = resolver();
    expect(await resolves.resolve(request(1000, { modelAsked: "p4@1" }))).toEqual({ policy: "p4", version: 1 });
    expect(await resolves.resolve(request(1000, {}, "p4@1"))).toEqual({ policy: "p4", version: 1 });
    // A pin of one policy leaves another's role alone, and is held to whatever name its own is asked by.
    const checker = { route: { policy: "p5", role: "checker" }, modelAsked: "checker" };
    expect(await resolves.resolve(request(1000, checker, "p4@1"))).toEqual({ policy: "p5", version: 0 });
    const writer = { route: { policy: "p4", role: "writer" }, modelAsked: "writer" };
    expect(await resolves.resolve(request(1000, writer, "p4@1"))).toEqual({ policy: "p4", version: 1 });
    const mapped = { route: { policy: "p5", role: "p4@1" }, modelAsked: "p4@1" };
    expect(await resolves.resolve(request(1000, mapped))).toEqual({ policy: "p5", version: 0 });
    await expect(resolves.resolve(request(1000, { modelAsked: "p4@9" }))).rejects.toMatchObject({
      code: "ERR_UNKNOWN_POLICY",
    });
  });
});
