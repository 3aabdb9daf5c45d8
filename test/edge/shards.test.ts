import { describe, expect, it } from "vitest";
import { shardOf } from "#shared/shards.ts";
import { edgeConfig, type Env } from "../../edge/config.ts";
import { objectName, rememberedShardOf, shardOfObject, storeBinding, storeShards } from "../../edge/shards.ts";

const A = "https://a.example";
const B = "https://b.example";

describe("storeShards", () => {
  it("is one database where no more are named", () => {
    expect(storeShards({ STORE_URL: A }, "t")).toEqual([{ index: 0, url: A, token: "t" }]);
  });

  it("gives each its token, or all the same", () => {
    const variables = { STORE_URL: A, STORE_SHARDS: `${A}, ${B}` };
    expect(storeShards(variables, "t").map(({ token }) => token)).toEqual(["t", "t"]);
    expect(storeShards(variables, "t,u")).toEqual([
      { index: 0, url: A, token: "t" },
      { index: 1, url: B, token: "u" },
    ]);
    expect(() => storeShards(variables, "t,u,v")).toThrow("2 shards and 3 store tokens");
  });

  it.each([`${B},${A}`, `${A},${A}`, `${A},elsewhere`, ""])("refuses %j, with the first at a", (list) => {
    expect(() => storeShards({ STORE_URL: A, STORE_SHARDS: list }, "t")).toThrow(
      "every shard's address once, with commas between, the first of them being STORE_URL",
    );
  });
});

describe("a shard's objects", () => {
  const id = (name: string) => ({ name, equals: (other: { name: string }) => other.name === name });
  const namespace = { idFromName: id };
  const shards = storeShards({ STORE_URL: A, STORE_SHARDS: `${A},${B}` }, "t");

  it("have names of which the first is the one that it had alone", () => {
    expect([0, 1, 2].map((shard) => objectName("writer", shard))).toEqual(["writer", "writer:1", "writer:2"]);
    expect([0, 1, 2].map(storeBinding)).toEqual(["STORE", "STORE_1", "STORE_2"]);
  });

  it("know which shard they are of, and that they are of none that is configured any more", () => {
    expect(shardOfObject(namespace, id("writer"), { kind: "writer", shards }).url).toBe(A);
    expect(shardOfObject(namespace, id("writer:1"), { kind: "writer", shards }).url).toBe(B);
    const alone = { kind: "writer", shards: shards.slice(0, 1) } as const;
    expect(() => shardOfObject(namespace, id("writer:1"), alone)).toThrow("of none of the 1 shards");
  });
});

describe("the edge's configuration", () => {
  const env = (more: object): Env =>
    ({
      STORE_URL: A,
      STORE_READ_TOKEN: "t",
      INFERENCE_URL: "http://127.0.0.1:1",
      SIGNING_KEYS: '{"keys":[{"kty":"OKP","kid":"k","d":"d"}]}',
      AGENTS: "{}",
      PUBLIC_URL: A,
      ...more,
    }) as Env;

  it("places every tenant in the one shard there is, or by name and home", () => {
    const one = edgeConfig(env({}));
    expect(one.shards).toEqual([{ index: 0, url: A, token: "t" }]);
    expect(one.shardOf("default")).toBe(0);
    const two = edgeConfig(env({ STORE_SHARDS: `${A},${B}`, STORE_HOMES: '{"acme":0}' }));
    expect(["default", "acme", "globex"].map(two.shardOf)).toEqual([1, 0, 0]);
  });

  it.each([
    [{ STORE_SHARDS: `${A},${B}`, STORE_HOMES: '{"acme":2}' }, "names a shard that is not there; there are 2"],
    [{ STORE_HOMES: "acme" }, "STORE_HOMES is not usable: it is not JSON"],
    [{ STORE_HOMES: '{"acme":-1}' }, "STORE_HOMES"],
    [{ STORE_SHARDS: B }, "the first of them being STORE_URL"],
  ])("refuses %j", (more, why) => {
    expect(() => edgeConfig(env(more))).toThrow(why);
  });
});

it("rememberedShardOf is shardOf", () => {
  const placement = { shards: 5, homes: { there: 4 } };
  const remembered = rememberedShardOf(placement);
  for (const tenant of ["there", "a", "b", "a", "there"]) expect(remembered(tenant)).toBe(shardOf(tenant, placement));
});
