import { describe, expect, it } from "vitest";
import { onQueue, onScheduled, wakeDispatch } from "../../../edge/dispatch/queue.ts";

type Env = Parameters<typeof onQueue>[1] & Parameters<typeof wakeDispatch>[0];

/** The two bindings as far as they are used. */
function bindings(wake: () => Promise<void> = () => Promise.resolve()) {
  const seen = { woken: [] as string[], sent: [] as string[][] };
  const env = {
    DISPATCHER: {
      idFromName: (name: string) => name,
      get: (name: string) => ({
        wake: () => {
          seen.woken.push(name);
          return wake();
        },
      }),
    },
    ROLLOUTS: {
      sendBatch: (messages: readonly { body: { rollout_ids: string[] } }[]) => {
        for (const { body } of messages) seen.sent.push(body.rollout_ids);
        return Promise.resolve();
      },
    },
  } as unknown as Env;
  return { env, seen };
}

function batch() {
  const seen = { acknowledged: 0 };
  const given = { ackAll: () => void seen.acknowledged++ } as unknown as Parameters<typeof onQueue>[0];
  return { given, seen };
}

describe("wakeDispatch", () => {
  it("sends ids only, so many that a message stays small", async () => {
    const { env, seen } = bindings();
    const ids = Array.from({ length: 1001 }, (_, index) => `ro_${String(index).padStart(32, "0")}`);
    await wakeDispatch(env, ids);
    expect(seen.sent.map((message) => message.length)).toEqual([500, 500, 1]);
    expect(seen.sent.flat()).toEqual(ids);
    for (const message of seen.sent) expect(JSON.stringify(message).length).toBeLessThan(128 * 1024);
  });

  it("sends nothing where nothing was queued", async () => {
    const { env, seen } = bindings();
    await wakeDispatch(env, []);
    expect(seen.sent).toEqual([]);
  });
});

describe("onQueue", () => {
  it("wakes the one dispatcher and acknowledges", async () => {
    const { env, seen } = bindings();
    const { given, seen: batchSeen } = batch();
    await onQueue(given, env);
    await onScheduled(env);
    expect(seen.woken).toEqual(["dispatcher", "dispatcher"]);
    expect(batchSeen.acknowledged).toBe(1);
  });

  it("leaves the batch to be delivered again where waking fails", async () => {
    const { env } = bindings(() => Promise.reject(new Error("overloaded")));
    const { given, seen } = batch();
    await expect(onQueue(given, env)).rejects.toThrow("overloaded");
    expect(seen.acknowledged).toBe(0);
  });
});
