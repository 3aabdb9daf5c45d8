import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { limits } from "../../../edge/proxy/limits.ts";

describe("limits", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it("tell what is late once, at the first look after its time, and nothing that was called off", () => {
    const request = limits();
    const late: string[] = [];
    request.after(700, () => late.push("slow"));
    const callOff = request.after(100, () => late.push("called off"));
    request.after(400, () => late.push("soon"));
    callOff();
    vi.advanceTimersByTime(499);
    expect(late).toEqual([]);
    vi.advanceTimersByTime(1);
    expect(late).toEqual(["soon"]);
    vi.advanceTimersByTime(5000);
    expect(late).toEqual(["soon", "slow"]);
  });

  it("share one timer, which ends when there is nothing to look at any more and begins again", () => {
    const request = limits();
    const calledOff = [1, 2, 3].map(() => request.after(10_000, () => undefined));
    expect(vi.getTimerCount()).toBe(1);
    for (const callOff of calledOff) callOff();
    vi.advanceTimersByTime(500);
    expect(vi.getTimerCount()).toBe(0);
    request.after(10_000, () => undefined);
    expect(vi.getTimerCount()).toBe(1);
    request.end();
    expect(vi.getTimerCount()).toBe(0);
    const late = vi.fn();
    request.after(100, late);
    vi.advanceTimersByTime(500);
    expect(late).toHaveBeenCalledOnce();
  });
});
