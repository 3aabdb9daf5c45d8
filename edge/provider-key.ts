import { FulgurError } from "#shared/errors.ts";
import { fromBase64, toBase64 } from "#shared/store/base64.ts";
import type { StoredProvider } from "#shared/store/providers.ts";
import type { EdgeConfig } from "./config.ts";

/**
 * The keys of frozen upstreams. In the store they are sealed with the edge's vault key (AES-256-GCM), bound to tenant,
 * provider and address: a sealed key that is moved to another row, or whose row is led elsewhere, does not open.
 */

/** What a key is sealed for. */
export type KeyPlace = Pick<StoredProvider, "tenantId" | "name" | "baseUrl">;

type VaultConfig = Pick<EdgeConfig, "vaultKey" | "providerKeys">;

const IV_BYTES = 12;

/** @throws FulgurError ERR_CONFIG where the edge has no vault key */
export async function sealKey(config: VaultConfig, place: KeyPlace, key: string): Promise<string> {
  const iv = crypto.getRandomValues(new Uint8Array(IV_BYTES));
  const sealed = await crypto.subtle.encrypt(
    { name: "AES-GCM", iv, additionalData: bound(place) },
    await vault(config),
    new TextEncoder().encode(key),
  );
  return `v1.${toBase64(iv)}.${toBase64(new Uint8Array(sealed))}`;
}

/**
 * The key that a provider is called with: the sealed one, or the edge's own variable; null where it needs none.
 * @throws FulgurError ERR_CONFIG where the key is there but this edge cannot open it, or its variable is not
 */
export async function openKey(config: VaultConfig, provider: StoredProvider): Promise<string | null> {
  const { name, keySealed, keyEnv } = provider;
  if (keySealed !== null) {
    const [version, iv, sealed] = keySealed.split(".");
    if (version !== "v1" || iv === undefined || sealed === undefined) throw unopened(name);
    const vaultKey = await vault(config);
    try {
      const opened = await crypto.subtle.decrypt(
        { name: "AES-GCM", iv: fromBase64(iv), additionalData: bound(provider) },
        vaultKey,
        fromBase64(sealed),
      );
      return new TextDecoder().decode(opened);
    } catch (cause) {
      throw unopened(name, cause);
    }
  }
  if (keyEnv === null) return null;
  const key = config.providerKeys.get(keyEnv);
  if (key !== undefined) return key;
  throw new FulgurError(
    "ERR_CONFIG",
    `provider ${name} takes its key from ${keyEnv}, which this edge does not have or does not lend to providers; set it and name it in PROVIDER_KEY_ENVS, or send the key (npx fulgur providers add, with ${keyEnv} set)`,
  );
}

async function vault({ vaultKey }: VaultConfig): Promise<CryptoKey> {
  if (vaultKey === undefined) {
    throw new FulgurError(
      "ERR_CONFIG",
      "this edge has no VAULT_KEY to seal a provider's key with; set it to 32 random bytes in base64url (wrangler secret put VAULT_KEY)",
    );
  }
  const bytes = fromBase64(vaultKey.replaceAll("-", "+").replaceAll("_", "/"));
  return crypto.subtle.importKey("raw", bytes, "AES-GCM", false, ["encrypt", "decrypt"]);
}

function bound({ tenantId, name, baseUrl }: KeyPlace): Uint8Array {
  return new TextEncoder().encode(JSON.stringify([tenantId, name, baseUrl]));
}

function unopened(name: string, cause?: unknown): FulgurError {
  return new FulgurError(
    "ERR_CONFIG",
    `the key of provider ${name} does not open with this edge's VAULT_KEY; send it again (PUT /v1/providers/${name})`,
    { cause },
  );
}
