import { describe, expect, it } from "vitest";
import type { StoredProvider } from "#shared/store/providers.ts";
import { openKey, sealKey } from "../../edge/provider-key.ts";

const CONFIG = { vaultKey: "a".repeat(43), providerKeys: new Map([["LENT", "lent-key"]]) };
const PLACE = { tenantId: "t1", name: "openai", baseUrl: "https://api.example.com/v1" };

async function sealed(change: Partial<StoredProvider> = {}): Promise<StoredProvider> {
  return { ...PLACE, keyEnv: null, keySealed: await sealKey(CONFIG, PLACE, "sk-secret"), updatedAt: 1, ...change };
}

describe("a sealed key", () => {
  it("opens where it was sealed for, and never looks the same twice", async () => {
    const [one, two] = [await sealed(), await sealed()];
    expect(one.keySealed).not.toBe(two.keySealed);
    expect(one.keySealed).not.toContain("secret");
    expect(await openKey(CONFIG, one)).toBe("sk-secret");
  });

  it.each([
    ["another tenant's row", { tenantId: "t2" }],
    ["another provider's row", { name: "other" }],
    ["another address", { baseUrl: "https://evil.example.com/v1" }],
  ])("does not open in %s", async (_what, change) => {
    await expect(openKey(CONFIG, await sealed(change))).rejects.toMatchObject({ code: "ERR_CONFIG" });
  });

  it("does not open with another vault key, none, or once it was touched", async () => {
    const provider = await sealed();
    await expect(openKey({ ...CONFIG, vaultKey: "b".repeat(43) }, provider)).rejects.toMatchObject({
      message: expect.stringContaining("send it again"),
    });
    await expect(openKey({ ...CONFIG, vaultKey: undefined }, provider)).rejects.toMatchObject({
      message: expect.stringContaining("VAULT_KEY"),
    });
    const [version, iv, text = ""] = provider.keySealed?.split(".") ?? [];
    const touched = `${version}.${iv}.${text.startsWith("A") ? "B" : "A"}${text.slice(1)}`;
    for (const keySealed of [touched, "v2.x.y", "v1", "v1.###.###", ""]) {
      await expect(openKey(CONFIG, { ...provider, keySealed })).rejects.toMatchObject({ code: "ERR_CONFIG" });
    }
  });

  it("comes from the edge's variable only where that is lent, and is not needed by every provider", async () => {
    const open = { ...PLACE, keySealed: null, updatedAt: 1 };
    expect(await openKey(CONFIG, { ...open, keyEnv: "LENT" })).toBe("lent-key");
    expect(await openKey(CONFIG, { ...open, keyEnv: null })).toBeNull();
    await expect(openKey(CONFIG, { ...open, keyEnv: "STORE_WRITE_TOKEN" })).rejects.toMatchObject({
      message: expect.stringContaining("STORE_WRITE_TOKEN"),
    });
  });
});
