import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { shardOf } from "#shared/shards.ts";
import { keyIdOf, newKey, shardOfKeyId } from "#shared/keys.ts";

const shards = fc.integer({ min: 1, max: 64 });

describe("shardOf", () => {
  it("is what it was: tenants are found by it for good", () => {
    const places = (tenant: string): number[] => [2, 3, 4, 16].map((count) => shardOf(tenant, { shards: count }));
    expect(places("default")).toEqual([1, 1, 3, 8]);
    expect(places("acme")).toEqual([1, 1, 1, 15]);
    expect(places("globex")).toEqual([0, 0, 0, 0]);
    expect(places("b")).toEqual([0, 2, 3, 14]);
    expect(places("初")).toEqual([0, 0, 0, 5]);
    expect(places("")).toEqual([0, 0, 3, 3]);
  });

  it("is one of the shards, whatever the name", () => {
    fc.assert(
      fc.property(fc.string({ unit: "binary" }), shards, (tenant, count) => {
        const shard = shardOf(tenant, { shards: count });
        expect(Number.isInteger(shard) && shard >= 0 && shard < count).toBe(true);
      }),
    );
  });

  it("moves a tenant to the shard that is added, or nowhere", () => {
    fc.assert(
      fc.property(fc.string(), shards, (tenant, count) => {
        const before = shardOf(tenant, { shards: count });
        expect([before, count]).toContain(shardOf(tenant, { shards: count + 1 }));
      }),
    );
  });

  it("gives each shard its share", () => {
    const tenants = Array.from({ length: 8000 }, (_, at) => `tenant-${at}`);
    const counts = Map.groupBy(tenants, (tenant) => shardOf(tenant, { shards: 8 }));
    // 1000 each, give or take four standard deviations.
    for (const { length } of counts.values()) expect(Math.abs(length - 1000)).toBeLessThan(120);
    expect(counts.size).toBe(8);
  });

  it("leaves a tenant where it was given a home", () => {
    expect(shardOf("default", { shards: 2, homes: { default: 0 } })).toBe(0);
    expect(shardOf("acme", { shards: 2, homes: { default: 0 } })).toBe(1);
    // A name of JavaScript's own is no home.
    expect(shardOf("constructor", { shards: 4, homes: {} })).toBe(shardOf("constructor", { shards: 4 }));
  });
});

describe("a key's id", () => {
  it.each([0, 1, 12, 4095])("names shard %d", async (shard) => {
    const { id, key } = await newKey(shard);
    expect(keyIdOf(key)).toBe(id);
    expect(shardOfKeyId(id)).toBe(shard);
  });

  it.each(["0-", "01-", "-1-", "1--", "99999-", "1.5-"])("has no shard written as %s", async (prefix) => {
    const { key } = await newKey();
    expect(keyIdOf(key.replace("fk_", `fk_${prefix}`))).toBeUndefined();
  });
});
