import { describe, expect, it, vi } from "vitest";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { insist, patient } from "../../trainer/patience.ts";

const quick = { limitMs: 5000, firstDelayMs: 0 };
const away = new FulgurError("ERR_STORE", "the store is away");

describe("insist", () => {
  it.each([
    ["a store that is away", away],
    ["an endpoint that is away", new FulgurError("ERR_UPSTREAM", "gone")],
    ["a broken connection", new TypeError("fetch failed")],
    ["a client's error that names no fault of ours", new Error("SERVER_ERROR: Server returned HTTP status 502")],
  ])("tries again after %s", async (_, error) => {
    const action = vi
      .fn<() => Promise<number>>()
      .mockRejectedValueOnce(error)
      .mockRejectedValueOnce(error)
      .mockResolvedValue(7);
    expect(await insist("asking", action, quick)).toBe(7);
    expect(action).toHaveBeenCalledTimes(3);
  });

  it.each([
    ["a refusal", new FulgurError("ERR_CONFLICT", "version taken")],
    ["a bug", new TypeError("x is not a function")],
    ["an answer of another form", z.string().safeParse(1).error],
    ["a wrong statement", new Error("SQLITE_ERROR: no such table: rollouts")],
  ])("does not try again after %s", async (_, error) => {
    const action = vi.fn<() => Promise<number>>().mockRejectedValue(error);
    await expect(insist("asking", action, quick)).rejects.toBe(error);
    expect(action).toHaveBeenCalledTimes(1);
  });

  it("gives up with the last error when the time is over", async () => {
    const action = vi.fn<() => Promise<number>>().mockRejectedValue(away);
    await expect(insist("asking", action, { limitMs: 30, firstDelayMs: 10 })).rejects.toBe(away);
    expect(action.mock.calls.length).toBeGreaterThan(1);
  });

  it("stops at a signal", async () => {
    const stop = new Error("stop");
    const controller = new AbortController();
    const action = vi.fn<() => Promise<number>>().mockImplementation(() => {
      controller.abort(stop);
      return Promise.reject(away);
    });
    await expect(insist("asking", action, { ...quick, signal: controller.signal })).rejects.toBe(stop);
    expect(action).toHaveBeenCalledTimes(1);
  });
});

describe("patient", () => {
  it("makes each function of an object insist, on the object itself", async () => {
    class Counter {
      #count = 0;
      async next(by: number): Promise<number> {
        this.#count += by;
        if (this.#count < 6) throw away;
        return this.#count;
      }
    }
    expect(await patient(new Counter(), quick).next(2)).toBe(6);
  });
});
