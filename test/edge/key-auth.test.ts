import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newKey } from "#shared/keys.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { createKey, revokeKey, type StoredKey } from "#shared/store/keys.ts";
import { keyAuth, type KeyAuthRequest } from "../../edge/key-auth.ts";
import { startTestStore, type TestStore } from "../support/store.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startTestStore();
});
afterAll(() => store.stop());

async function made(change: Partial<StoredKey> = {}): Promise<{ key: string; id: string }> {
  const { id, key, hash } = await newKey();
  const row = { id, hash, tenantId: "t1", scope: "agent" as const, agent: null, label: "", ratePerMinute: null };
  await store.writer.append([createKey({ ...row, createdAt: 1, revokedAt: null, ...change })]);
  return { key, id };
}

function asking() {
  const beside: Promise<unknown>[] = [];
  let asked = 0;
  const dbOf = (): StoreDb => {
    asked++;
    return store.db;
  };
  const at = (now: number): KeyAuthRequest => ({ dbOf, now, later: (work) => void beside.push(work) });
  return { at, beside, asked: () => asked };
}

describe("keyAuth", () => {
  it("tells whose the key is and what it may do", async () => {
    const { key, id } = await made({ agent: "flight" });
    expect(await keyAuth().authenticate(key, asking().at(1000))).toEqual({
      tenantId: "t1",
      scopes: ["agent"],
      jti: `key:${id}`,
      expiresAtSeconds: Number.MAX_SAFE_INTEGER,
      keyId: id,
      keyAgent: "flight",
    });
    const trainer = await made({ scope: "trainer", tenantId: "t2" });
    expect(await keyAuth().authenticate(trainer.key, asking().at(1000))).toMatchObject({
      tenantId: "t2",
      scopes: ["trainer", "read", "agent"],
    });
  });

  it("refuses a key with another secret, another id, of another form, and one that was revoked", async () => {
    const [one, two] = [await made(), await made()];
    const auth = keyAuth();
    const secret = one.key.slice(20);
    for (const key of [
      two.key.slice(0, 20) + secret,
      `fk_${"0".repeat(16)}_${secret}`,
      `${one.key.slice(0, -1)}${one.key.endsWith("A") ? "B" : "A"}`,
      `${one.key}A`,
      one.key.slice(0, -1),
      one.key.toUpperCase(),
      `fk_${one.id}_' or 1=1 --${"x".repeat(32)}`,
      "fk__",
      "",
    ]) {
      await expect(auth.authenticate(key, asking().at(1000))).rejects.toMatchObject({ code: "ERR_AUTH" });
    }
    await store.writer.transact([revokeKey("t1", two.id, 5)]);
    await expect(auth.authenticate(two.key, asking().at(1000))).rejects.toMatchObject({ code: "ERR_AUTH" });
    await expect(auth.authenticate(one.key, asking().at(1000))).resolves.toMatchObject({ keyId: one.id });
  });

  it("asks the store once a second beside the calls, and notices a revocation within two", async () => {
    const { key, id } = await made();
    const { at, beside, asked } = asking();
    const auth = keyAuth();
    await auth.authenticate(key, at(10_000));
    await auth.authenticate(key, at(10_900));
    expect(asked()).toBe(1);
    await store.writer.transact([revokeKey("t1", id, 5)]);
    await expect(auth.authenticate(key, at(11_500))).resolves.toMatchObject({ keyId: id });
    await Promise.all(beside);
    expect(asked()).toBe(2);
    await expect(auth.authenticate(key, at(11_600))).rejects.toMatchObject({ code: "ERR_AUTH" });

    const other = await made();
    const idle = keyAuth();
    await idle.authenticate(other.key, at(10_000));
    await store.writer.transact([revokeKey("t1", other.id, 5)]);
    await expect(idle.authenticate(other.key, at(12_000))).rejects.toMatchObject({ code: "ERR_AUTH" });
  });

  it("notices at once a revocation that was made here", async () => {
    const { key, id } = await made();
    const auth = keyAuth();
    await auth.authenticate(key, asking().at(1000));
    auth.note(id, 1001);
    await expect(auth.authenticate(key, asking().at(1002))).rejects.toMatchObject({ code: "ERR_AUTH" });
  });

  it("goes on with a key that it knows while the store is away, and cannot judge another", async () => {
    const [known, unknown] = [await made(), await made()];
    const auth = keyAuth();
    await auth.authenticate(known.key, asking().at(1000));
    const away: KeyAuthRequest = {
      ...asking().at(30_000),
      dbOf: () => {
        throw new Error("away");
      },
    };
    await expect(auth.authenticate(known.key, away)).resolves.toMatchObject({ keyId: known.id });
    await expect(auth.authenticate(unknown.key, away)).rejects.toMatchObject({ code: "ERR_STORE" });
  });

  it("lets a minute's worth through at once and then as many as come back", async () => {
    const { key } = await made({ ratePerMinute: 3 });
    const auth = keyAuth();
    for (let n = 0; n < 3; n++) await auth.authenticate(key, asking().at(1000));
    await expect(auth.authenticate(key, asking().at(1500))).rejects.toMatchObject({
      code: "ERR_OVERLOADED",
      retryAfterSeconds: 20,
    });
    await auth.authenticate(key, asking().at(21_000));
    await expect(auth.authenticate(key, asking().at(21_000))).rejects.toMatchObject({ code: "ERR_OVERLOADED" });
  });

  it("never tells the key in its message", async () => {
    const { key } = await newKey();
    const refusal: unknown = await keyAuth()
      .authenticate(key, asking().at(1000))
      .catch((thrown: unknown) => thrown);
    expect(String(refusal)).not.toContain(key.slice(3, 19));
  });

  it("looks a key up in the shard that its id names, and takes it only of a tenant that lives there", async () => {
    const inShard = async (shard: number, tenantId: string): Promise<string> => {
      const { id, key, hash } = await newKey(shard);
      const row = { id, hash, tenantId, scope: "read" as const, agent: null, label: "", ratePerMinute: null };
      await store.writer.append([createKey({ ...row, createdAt: 1, revokedAt: null })]);
      return key;
    };
    const auth = keyAuth({ shards: 3, shardOf: (tenantId) => Number(tenantId.slice(1)) });
    const asked: number[] = [];
    const request: KeyAuthRequest = {
      ...asking().at(1000),
      dbOf: (shard) => {
        asked.push(shard);
        return store.db;
      },
    };
    const key = await inShard(2, "t2");
    expect(key).toMatch(/^fk_2-[0-9a-f]{16}_/);
    await expect(auth.authenticate(key, request)).resolves.toMatchObject({ tenantId: "t2" });
    await expect(auth.authenticate(await inShard(0, "t0"), request)).resolves.toMatchObject({ tenantId: "t0" });
    expect(asked).toEqual([2, 0]);
    const refused = { code: "ERR_AUTH" };
    await expect(auth.authenticate(await inShard(1, "t2"), request)).rejects.toMatchObject(refused);
    // There is no such shard, so nobody is asked.
    await expect(auth.authenticate(await inShard(3, "t0"), request)).rejects.toMatchObject(refused);
    expect(asked).toEqual([2, 0, 1]);
  });
});
