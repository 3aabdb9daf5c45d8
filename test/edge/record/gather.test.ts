import { describe, expect, it } from "vitest";
import { FulgurError } from "#shared/errors.ts";
import { encoded } from "#shared/store/encoded.ts";
import type { Statement, Writable } from "#shared/store/statement.ts";
import { gatherer } from "../../../edge/record/gather.ts";

const unit = (name: string): Statement[] => [{ sql: "insert", args: [name] }];
const NAMES = new Map(["a", "b", "c", "d", "bad"].map((name) => [encoded({ sql: "", args: [name] }).argsJson, name]));
const named = (units: readonly (readonly Writable[])[]): (string | undefined)[] =>
  units.map(([statement]) => (statement === undefined ? undefined : NAMES.get(encoded(statement).argsJson)));

/** A writer that answers when it is told to; `asked` has the units of each append. */
function writer() {
  const asked: (string | undefined)[][] = [];
  const answers: { resolve: () => void; reject: (cause: unknown) => void }[] = [];
  return {
    asked,
    answers,
    append: (units: readonly (readonly Writable[])[]): Promise<void> => {
      asked.push(named(units));
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      answers.push({ resolve, reject });
      return promise;
    },
  };
}

const refusal = new FulgurError("ERR_CONFLICT", "refused");

describe("gatherer", () => {
  it("sends the first append at once and what comes meanwhile as one, and settles each when it is stored", async () => {
    const { asked, answers, append } = writer();
    const gathers = gatherer();
    const first = gathers.append([unit("a")], { append });
    const others = ["b", "c", "d"].map((name) => gathers.append([unit(name)], { append }));
    let settled = 0;
    for (const other of others) void other.then(() => settled++);
    expect(asked).toEqual([["a"]]);
    answers[0]?.resolve();
    await first;
    await expect.poll(() => asked).toEqual([["a"], ["b", "c", "d"]]);
    expect(settled).toBe(0);
    answers[1]?.resolve();
    await Promise.all(others);
    // Nobody waits, so the next goes at once again.
    const last = gathers.append([unit("a")], { append });
    expect(asked).toHaveLength(3);
    answers[2]?.resolve();
    await last;
  });

  it("sends a group's worth without waiting for the appends before it, never more in one and four at once", async () => {
    const { asked, answers, append } = writer();
    const gathers = gatherer();
    const all = Array.from({ length: 1 + 3 * 65 + 100 }, () => gathers.append([unit("a")], { append }));
    expect(asked.map((units) => units.length)).toEqual([1, 65, 65, 65]);
    answers[2]?.resolve();
    await expect.poll(() => asked.map((units) => units.length)).toEqual([1, 65, 65, 65, 65]);
    // The 35 that are left are less than a group: they wait for all that is under way.
    for (const at of [0, 1, 3]) answers[at]?.resolve();
    await expect.poll(() => answers).toHaveLength(5);
    answers[4]?.resolve();
    await expect.poll(() => asked.map((units) => units.length)).toEqual([1, 65, 65, 65, 65, 35]);
    answers[5]?.resolve();
    await Promise.all(all);
  });

  it("lets a refusal hit only the unit at fault", async () => {
    const gathers = gatherer();
    const asked: (string | undefined)[][] = [];
    const append = async (units: readonly (readonly Writable[])[]): Promise<void> => {
      const names = named(units);
      asked.push(names);
      await Promise.resolve();
      if (names.includes("bad")) throw refusal;
    };
    const outcomes = await Promise.allSettled(
      ["a", "b", "bad", "c"].map((name) => gathers.append([unit(name)], { append })),
    );
    expect(outcomes.map(({ status }) => status)).toEqual(["fulfilled", "fulfilled", "rejected", "fulfilled"]);
    expect(outcomes[2]).toMatchObject({ reason: refusal });
    expect(asked).toContainEqual(["b", "bad", "c"]);
  });

  it("tells all whose units went together that the writer is away, and goes on with the next", async () => {
    const { asked, answers, append } = writer();
    const gathers = gatherer();
    const first = gathers.append([unit("a")], { append });
    const others = ["b", "c"].map((name) => gathers.append([unit(name)], { append }));
    answers[0]?.resolve();
    await first;
    await expect.poll(() => asked).toHaveLength(2);
    const next = gathers.append([unit("d")], { append });
    answers[1]?.reject(new FulgurError("ERR_STORE", "away"));
    const outcomes = await Promise.allSettled(others);
    expect(outcomes).toMatchObject([
      { status: "rejected", reason: { code: "ERR_STORE" } },
      { status: "rejected", reason: { code: "ERR_STORE" } },
    ]);
    await expect.poll(() => asked).toEqual([["a"], ["b", "c"], ["d"]]);
    answers[2]?.resolve();
    await next;
  });

  it("tells all whose units went together of a disk that is full, also where the runtime says so", async () => {
    const { asked, answers, append } = writer();
    const gathers = gatherer();
    const first = gathers.append([unit("a")], { append });
    const others = ["b", "c"].map((name) => gathers.append([unit(name)], { append }));
    answers[0]?.resolve();
    await first;
    await expect.poll(() => asked).toHaveLength(2);
    answers[1]?.reject(new Error("database or disk is full: SQLITE_FULL"));
    const [leader, follower] = await Promise.allSettled(others);
    expect(leader).toMatchObject({ reason: { message: "database or disk is full: SQLITE_FULL" } });
    expect(follower).toMatchObject({ reason: { code: "ERR_DISK" } });
  });

  it("goes on by itself when the request that went ahead is not heard of any more", async () => {
    const { asked, answers, append } = writer();
    const gathers = gatherer({ patienceMs: 20 });
    const lost = gathers.append([unit("a")], { append });
    const waits = gathers.append([unit("b")], { append });
    await expect.poll(() => asked).toEqual([["a"], ["b"]]);
    // Nor does it stand in the way of who comes after.
    const after = gathers.append([unit("c")], { append });
    expect(asked).toEqual([["a"], ["b"], ["c"]]);
    for (const { resolve } of answers) resolve();
    await Promise.all([lost, waits, after]);
  });

  it("is behind once 256 appends wait and the oldest of them for over two seconds, until they are stored", async () => {
    const { answers, append } = writer();
    let now = 0;
    const gathers = gatherer({ now: () => now });
    const appends = (many: number) => Array.from({ length: many }, () => gathers.append([unit("a")], { append }));
    const all = appends(255);
    now = 2001;
    expect(gathers.isBehind()).toBe(false);
    all.push(...appends(1));
    expect(gathers.isBehind()).toBe(true);
    now = 2000;
    expect(gathers.isBehind()).toBe(false);
    now = 2001;
    // The first alone, then three groups of 65.
    for (const { resolve } of answers) resolve();
    await Promise.all(all.slice(0, 196));
    expect(gathers.isBehind()).toBe(false);
    await expect.poll(() => answers).toHaveLength(5);
    answers[4]?.resolve();
    await Promise.all(all);
  });

  it("is behind with 1,024 appends, however short they wait", async () => {
    const { answers, append } = writer();
    const gathers = gatherer({ now: () => 0 });
    for (let at = 0; at < 1023; at++) void gathers.append([unit("a")], { append }).catch(() => undefined);
    expect(gathers.isBehind()).toBe(false);
    void gathers.append([unit("a")], { append }).catch(() => undefined);
    expect(gathers.isBehind()).toBe(true);
    expect(answers).toHaveLength(4);
  });

  it("does not stay behind for requests that were ended before they could say so", async () => {
    const { answers, append } = writer();
    let now = 0;
    const gathers = gatherer({ now: () => now });
    const lost = Array.from({ length: 256 }, () => gathers.append([unit("a")], { append }));
    now = 16_000;
    expect(gathers.isBehind()).toBe(true);
    now = 16_001;
    expect(gathers.isBehind()).toBe(false);
    expect(answers).toHaveLength(4);
    for (const { resolve } of answers) resolve();
    await expect.poll(() => answers).toHaveLength(5);
    answers[4]?.resolve();
    await Promise.all(lost);
  });
});
