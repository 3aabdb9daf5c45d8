import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { AgentSettingsInput } from "#shared/agent-settings.ts";
import { deleteAgent, mapModels, putAgent } from "#shared/store/agents.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { putProvider } from "#shared/store/providers.ts";
import { directory, layAgents, layOver, mapModel, type DirectoryRequest } from "../../edge/directory.ts";
import { sealKey } from "../../edge/provider-key.ts";
import { startTestStore, type TestStore } from "../support/store.ts";

const DEPLOYED: Record<string, AgentSettingsInput> = {
  flight: { binding: "AGENT_FLIGHT", policy: "flight", tools: { memory: 0.3 }, concurrency: 8 },
};

describe("layAgents", () => {
  it("maps more of a deployed agent's models and leaves the rest of it as it is", () => {
    const { flight } = layAgents(DEPLOYED, [
      { name: "flight", settings: { models: { judge: "provider:openai/gpt-5" } } },
    ]);
    expect(flight).toMatchObject({
      binding: "AGENT_FLIGHT",
      tools: { memory: 0.3 },
      concurrency: 8,
      models: { "*": "policy:flight", judge: "provider:openai/gpt-5" },
    });
  });

  it("lets what is stored win, also where one layer says policy and the other *", () => {
    expect(layOver({ policy: "a" }, { models: { "*": "policy:b" } }).models).toEqual({ "*": "policy:b" });
    expect(layOver({ models: { "*": "policy:a" } }, { policy: "b" }).models).toEqual({ "*": "policy:b" });
    expect(layOver({ concurrency: 1 }, { concurrency: 2 }).concurrency).toBe(2);
  });

  it("moves an agent from its binding to an address and back", () => {
    const moved = layOver(DEPLOYED["flight"], { url: "https://agent.example.com/run" });
    expect(moved).toMatchObject({ url: "https://agent.example.com/run" });
    expect(moved).not.toHaveProperty("binding");
    expect(layOver(moved, { binding: "AGENT" })).not.toHaveProperty("url");
  });

  it("leaves out an agent whose settings do not fit, and keeps the others", () => {
    const broken = JSON.parse('{"alpha": 7}') as AgentSettingsInput;
    expect(Object.keys(layAgents(DEPLOYED, [{ name: "odd", settings: broken }]))).toEqual(["flight"]);
  });
});

describe("mapModel", () => {
  const agents = layAgents({}, [
    { name: "both", settings: { models: { "*": "policy:p", "gpt-5": "provider:o/gpt-5/mini" } } },
    { name: "exact", settings: { models: { writer: "policy:w" } } },
  ]);

  it("takes the exact name before *, and names the role by it", () => {
    expect(mapModel(agents, "both", "gpt-5")).toEqual({
      target: { kind: "provider", provider: "o", model: "gpt-5/mini" },
      role: "gpt-5",
    });
    expect(mapModel(agents, "both", "other")).toEqual({ target: { kind: "policy", policy: "p" }, role: "main" });
    expect(mapModel(agents, "both", "*").role).toBe("main");
  });

  it.each([
    ["exact", "reader", "agent exact does not map the model reader; it maps writer"],
    ["exact", "constructor", "does not map the model constructor"],
    ["none", "x", "there is no agent none"],
    ["constructor", "x", "there is no agent constructor"],
  ])("says of agent %s and model %s what there is", (agent, model, message) => {
    expect(() => mapModel(agents, agent, model)).toThrow(message);
  });
});

describe("directory", () => {
  let store: TestStore;
  beforeAll(async () => {
    store = await startTestStore();
  });
  afterAll(() => store.stop());

  const CONFIG = { agentInputs: DEPLOYED, vaultKey: "k".repeat(43), providerKeys: new Map([["LENT_KEY", "lent"]]) };

  function asking(tenantId: string) {
    const beside: Promise<unknown>[] = [];
    let asked = 0;
    const db = (): StoreDb => {
      asked++;
      return store.db;
    };
    const at = (now: number): DirectoryRequest => ({ tenantId, db, now, later: (work) => void beside.push(work) });
    return { at, beside, asked: () => asked };
  }

  it("answers from memory for a second, then asks beside the call, then before it", async () => {
    const { at, beside, asked } = asking("t-fresh");
    const known = directory(CONFIG);
    expect(Object.keys((await known.of(at(10_000))).agents)).toEqual(["flight"]);
    const first = asked();
    await store.writer.append([
      mapModels({ tenantId: "t-fresh", name: "new", updatedAt: 1 }, { "*": "policy:flight" }),
    ]);
    expect(Object.keys((await known.of(at(10_900))).agents)).toEqual(["flight"]);
    expect(asked()).toBe(first);

    expect(Object.keys((await known.of(at(11_100))).agents)).toEqual(["flight"]);
    await Promise.all(beside);
    expect(asked()).toBe(2 * first);
    expect(Object.keys((await known.of(at(11_200))).agents)).toEqual(["flight", "new"]);

    await store.writer.transact([deleteAgent("t-fresh", "new")]);
    expect(Object.keys((await known.of(at(20_000))).agents)).toEqual(["flight"]);
  });

  it("keeps tenants apart, and forgets one when it is told to", async () => {
    const known = directory(CONFIG);
    await store.writer.append([putAgent({ tenantId: "t-a", name: "only-a", settings: {}, updatedAt: 1 })]);
    const [a, b] = [asking("t-a"), asking("t-b")];
    expect(Object.keys((await known.of(a.at(1000))).agents)).toContain("only-a");
    expect(Object.keys((await known.of(b.at(1000))).agents)).not.toContain("only-a");
    await store.writer.append([putAgent({ tenantId: "t-b", name: "only-b", settings: {}, updatedAt: 1 })]);
    known.forget("t-b");
    expect(Object.keys((await known.of(b.at(1001))).agents)).toContain("only-b");
  });

  it("does not keep what was read before a change that was made meanwhile", async () => {
    const known = directory(CONFIG);
    const { at } = asking("t-race");
    const reading = known.of(at(1000));
    known.forget("t-race");
    await reading;
    await store.writer.append([putAgent({ tenantId: "t-race", name: "late", settings: {}, updatedAt: 1 })]);
    expect(Object.keys((await known.of(at(1001))).agents)).toContain("late");
  });

  it("serves what it knows while the store is away, and refuses what it does not know", async () => {
    const known = directory(CONFIG);
    const away: DirectoryRequest["db"] = () => {
      throw new Error("away");
    };
    await known.of(asking("t-known").at(1000));
    expect(Object.keys((await known.of({ ...asking("t-known").at(60_000), db: away })).agents)).toEqual(["flight"]);
    await expect(known.of({ ...asking("t-unknown").at(1000), db: away })).rejects.toMatchObject({ code: "ERR_STORE" });
  });

  it("leads a model to its provider with the key opened, sealed or lent by the edge or none", async () => {
    const tenantId = "t-route";
    const base = { tenantId, keyEnv: null, keySealed: null, updatedAt: 1 };
    const place = { tenantId, name: "sealed", baseUrl: "https://a.example.com/v1" };
    await store.writer.append([
      putProvider({ ...base, ...place, keySealed: await sealKey(CONFIG, place, "sk-secret") }),
      putProvider({ ...base, name: "lent", baseUrl: "https://b.example.com", keyEnv: "LENT_KEY" }),
      putProvider({ ...base, name: "open", baseUrl: "http://127.0.0.1:1" }),
      putProvider({ ...base, name: "absent", baseUrl: "https://c.example.com", keyEnv: "SIGNING_KEYS" }),
      mapModels(
        { tenantId, name: "agent", updatedAt: 1 },
        {
          s: "provider:sealed/m",
          l: "provider:lent/m",
          o: "provider:open/m",
          a: "provider:absent/m",
          g: "provider:gone/m",
          p: "policy:flight",
        },
      ),
    ]);
    const { route } = await directory(CONFIG).of(asking(tenantId).at(1000));
    expect(await route("agent", "s")).toEqual({
      kind: "provider",
      provider: { name: "sealed", baseUrl: "https://a.example.com/v1", apiKey: "sk-secret" },
      model: "m",
      role: "s",
    });
    expect(await route("agent", "l")).toMatchObject({ provider: { apiKey: "lent" } });
    expect(await route("agent", "o")).toMatchObject({ provider: { apiKey: null } });
    expect(await route("agent", "p")).toEqual({ kind: "policy", policy: "flight", role: "p" });
    await expect(route("agent", "a")).rejects.toMatchObject({ code: "ERR_CONFIG" });
    await expect(route("agent", "g")).rejects.toMatchObject({ code: "ERR_UNKNOWN_POLICY" });
  });
});
