import { describe, expect, it } from "vitest";
import type { StoreWriter } from "#shared/store/statement.ts";
import { counters } from "../../../edge/counters.ts";
import { admission } from "../../../edge/proxy/admission.ts";
import { ClientGoneError, record, recordFailure, type Call } from "../../../edge/proxy/call.ts";
import { Capture } from "../../../edge/proxy/capture.ts";
import { parseChatRequest } from "../../../edge/proxy/chat/request.ts";
import { limits } from "../../../edge/proxy/limits.ts";
import { promptMemory } from "../../../edge/proxy/prompt-memory.ts";
import { providerMemory } from "../../../edge/proxy/provider/memory.ts";
import { resolver } from "../../../edge/proxy/resolve.ts";
import { inferenceServers } from "../../../edge/proxy/servers.ts";
import { UpstreamError } from "../../../edge/proxy/upstream.ts";

const broken: StoreWriter = {
  append: () => Promise.reject(new Error("the outbox is full")),
  transact: () => Promise.reject(new Error("the outbox is full")),
  status: () => Promise.resolve({ storeUp: false, outbox: 1 }),
};

function callOf(mode: "train" | "live", options: { readonly failOpen?: boolean; readonly writer?: StoreWriter } = {}) {
  const appended: unknown[] = [];
  const writer = options.writer ?? {
    ...broken,
    append: async (units: unknown) => {
      appended.push(units);
    },
  };
  const requestText = JSON.stringify({ model: "m", messages: [{ role: "user", content: "x" }] });
  const capture = new Capture({
    id: "ca_1",
    tenantId: "t",
    rolloutId: "ro_1",
    attempt: 1,
    mode,
    dialect: "chat",
    modelAsked: "m",
    requestText,
    startedAt: 1000,
  });
  capture.target = { policy: "flight", version: 1 };
  const counted = counters();
  const call: Call = {
    deps: {
      servers: inferenceServers(["http://inference"]),
      reach: {
        admin: () => {
          throw new Error("not to be asked");
        },
        artifactOf: () => Promise.reject(new Error("not to be asked")),
        now: () => 2000,
        later: () => undefined,
      },
      callerOf: () => Promise.reject(new Error("not to be asked")),
      issued: () => undefined,
      agents: {},
      db: () => {
        throw new Error("not to be asked");
      },
      writer,
      admission: admission(),
      resolver: resolver(),
      prompts: promptMemory(),
      counters: counted,
      route: () => Promise.reject(new Error("not to be asked")),
      fetch,
      fetchProvider: fetch,
      providerMemory: providerMemory(),
      now: () => 2000,
      limits: limits(),
      waitUntil: () => undefined,
    },
    caller: {
      recording: "full",
      principal: { tenantId: "t", scopes: ["call"], jti: "j", expiresAtSeconds: 9 },
      rollout: {
        rolloutId: "ro_1",
        attempt: 1,
        agent: "flight",
        mode,
        pin: null,
        caps: { maxCalls: 1, maxTokens: 1 },
      },
    },
    chat: parseChatRequest(requestText),
    route: { kind: "policy", policy: "flight", role: "main" },
    capture,
    ending: new AbortController(),
    failOpen: options.failOpen ?? false,
  };
  return { call, appended, counted };
}

const OK = { httpStatus: 200, error: null };

describe("record", () => {
  it("answers nothing that it could not store, unless the tenant wants live calls answered", async () => {
    await expect(record(callOf("train", { writer: broken, failOpen: true }).call, OK)).rejects.toMatchObject({
      code: "ERR_STORE",
    });
    await expect(record(callOf("live", { writer: broken }).call, OK)).rejects.toMatchObject({ code: "ERR_STORE" });
  });

  it("never loses a live call's record silently", async () => {
    const { call, counted } = callOf("live", { writer: broken, failOpen: true });
    expect(await record(call, OK)).toEqual({ "x-fulgur-call": "ca_1", "x-fulgur-record": "lost" });
    expect(counted.read()).toMatchObject({ calls: 1, records_lost: 1 });
  });
});

describe("recordFailure", () => {
  it("records what inference was asked for, with its status and attempts, and returns the failure", async () => {
    const { call, appended, counted } = callOf("train");
    const failure = new UpstreamError("ERR_UPSTREAM", "away", { attempts: 4 });
    expect(await recordFailure(call, failure)).toBe(failure);
    expect(appended).toHaveLength(1);
    expect(JSON.stringify(appended)).toContain('"away"');
    expect(call.capture.upstreamAttempts).toBe(4);
    expect(counted.read()).toMatchObject({ calls: 1, call_errors: 1 });
  });

  it("records nothing where inference was never asked, or where the record itself had failed", async () => {
    const early = callOf("train");
    early.call.capture.target = undefined;
    await recordFailure(early.call, new Error("no such policy"));
    expect(early.appended).toEqual([]);

    const late = callOf("train");
    const failed: unknown = await record(callOf("train", { writer: broken }).call, OK).catch(
      (thrown: unknown) => thrown,
    );
    expect(await recordFailure(late.call, failed)).toBe(failed);
    expect(late.appended).toEqual([]);
  });

  it("says that the client left, whatever came after", async () => {
    const { call, appended } = callOf("train");
    call.ending.abort(new ClientGoneError());
    await recordFailure(call, new Error("reset"));
    expect(JSON.stringify(appended)).toContain('"client_disconnected"');
    expect(JSON.stringify(appended)).toContain("499");
  });
});
