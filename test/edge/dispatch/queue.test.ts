import { describe, expect, it } from "vitest";
import type { RolloutMessage } from "../../../edge/config.ts";
import { onQueue, onScheduled, wakeDispatch } from "../../../edge/dispatch/queue.ts";

type Env = Parameters<typeof onQueue>[1] & Parameters<typeof wakeDispatch>[0];

/** The two bindings as far as they are used. */
function bindings(wake: () => Promise<void> = () => Promise.resolve()) {
  const seen = { woken: [] as string[], sent: [] as RolloutMessage[] };
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
      sendBatch: (messages: readonly { body: RolloutMessage }[]) => {
        for (const { body } of messages) seen.sent.push(body);
        return Promise.resolve();
      },
    },
  } as unknown as Env;
  return { env, seen };
}

function batch(...bodies: RolloutMessage[]) {
  const seen = { acknowledged: 0 };
  const given = {
    messages: bodies.map((body) => ({ body })),
    ackAll: () => void seen.acknowledged++,
  } as unknown as Parameters<typeof onQueue>[0];
  return { given, seen };
}

describe("wakeDispatch", () => {
  it("sends ids only, so many that a message stays small", async () => {
    const { env, seen } = bindings();
    const ids = Array.from({ length: 1001 }, (_, index) => `ro_${String(index).padStart(32, "0")}`);
    await wakeDispatch(env, { shard: 2, rolloutIds: ids });
    expect(seen.sent.map(({ rollout_ids, shard }) => [rollout_ids.length, shard])).toEqual([
      [500, 2],
      [500, 2],
      [1, 2],
    ]);
    expect(seen.sent.flatMap(({ rollout_ids }) => rollout_ids)).toEqual(ids);
    for (const message of seen.sent) expect(JSON.stringify(message).length).toBeLessThan(128 * 1024);
  });

  it("sends nothing where nothing was queued", async () => {
    const { env, seen } = bindings();
    await wakeDispatch(env, { shard: 0, rolloutIds: [] });
    expect(seen.sent).toEqual([]);
  });
});

describe("onQueue", () => {
  it("wakes each dispatcher that has a message once, and acknowledges", async () => {
    const { env, seen } = bindings();
    const { given, seen: batchSeen } = batch(
      { rollout_ids: ["a"], shard: 1 },
      // As a message from before there were shards.
      { rollout_ids: ["b"] },
      { rollout_ids: ["c"], shard: 1 },
    );
    await onQueue(given, env);
    expect(seen.woken).toEqual(["dispatcher:1", "dispatcher"]);
    expect(batchSeen.acknowledged).toBe(1);
  });

  it("leaves the batch to be delivered again where waking fails", async () => {
    const { env } = bindings(() => Promise.reject(new Error("overloaded")));
    const { given, seen } = batch({ rollout_ids: ["a"], shard: 0 });
    await expect(onQueue(given, env)).rejects.toThrow("overloaded");
    expect(seen.acknowledged).toBe(0);
  });
});

describe("onScheduled", () => {
  it("wakes the dispatchers of all shards, one that cannot be woken keeping nobody else asleep", async () => {
    const { env, seen } = bindings(() =>
      seen.woken.length === 1 ? Promise.reject(new Error("overloaded")) : Promise.resolve(),
    );
    const shards = [0, 1, 2].map((index) => ({ index, url: "http://store", token: "t" }));
    await expect(onScheduled(env, shards)).rejects.toThrow("overloaded");
    expect(seen.woken).toEqual(["dispatcher", "dispatcher:1", "dispatcher:2"]);
  });
});
