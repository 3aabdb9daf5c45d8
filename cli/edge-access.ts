import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { edgeClient, type EdgeClient } from "#shared/client.ts";
import { FulgurError } from "#shared/errors.ts";
import { mintToken, type KeySet } from "#shared/tokens.ts";
import { DEFAULT_TENANT, type Scope } from "#shared/words.ts";
import { DEFAULT_PORT_BASE, localUrl } from "./ports.ts";
import { readRunning, type StateDir } from "./state.ts";

/** The local installation's tenant. */
export const TENANT = DEFAULT_TENANT;

const keySetSchema = z.object({ keys: z.array(z.looseObject({ kty: z.string() })).min(1) });

/**
 * A client of the edge that runs on a state folder, with tokens that we sign ourselves: who can read the folder's keys
 * is its admin.
 * @throws FulgurError ERR_CONFIG when the folder has no keys yet, ERR_UPSTREAM when nothing listens
 */
export async function localEdge(state: StateDir, scope: Scope): Promise<{ client: EdgeClient; url: string }> {
  const url = (await readRunning(state))?.edge_url ?? localUrl(DEFAULT_PORT_BASE);
  await requireListening(url);
  const keySet = await knownTo(url, await readKeySet(state));
  return { url, client: ownClient(url, keySet, scope) };
}

/** The keys with one first that the running edge verifies with: a rotated one is the edge's only after its next start. */
async function knownTo(url: string, keySet: KeySet): Promise<KeySet> {
  const response = await fetch(`${url}/.well-known/jwks.json`, { signal: AbortSignal.timeout(5_000) });
  const published = publishedSchema.safeParse(await response.json().catch(() => undefined));
  if (!published.success) return keySet;
  const kids = new Set(published.data.keys.map(({ kid }) => kid));
  return { keys: [...keySet.keys].sort((a, b) => Number(kids.has(b.kid ?? "")) - Number(kids.has(a.kid ?? ""))) };
}

const publishedSchema = z.object({ keys: z.array(z.looseObject({ kid: z.string() })) });

/** A client whose tokens are signed with the key set as they are needed; each is valid for a few minutes. */
export function ownClient(baseUrl: string, keySet: KeySet, scope: Scope): EdgeClient {
  let current: { readonly token: string; readonly expiresAt: number } | undefined;
  return edgeClient({
    baseUrl,
    token: async () => {
      if (current === undefined || current.expiresAt - Date.now() < 60_000)
        current = await mintToken(keySet, { tenantId: TENANT, scopes: [scope], ttlSeconds: 300 });
      return current.token;
    },
  });
}

async function readKeySet(state: StateDir): Promise<KeySet> {
  const path = join(state.keys, "edge.json");
  try {
    return keySetSchema.parse(JSON.parse(await readFile(path, "utf8")));
  } catch (cause) {
    throw new FulgurError(
      "ERR_CONFIG",
      `there are no signing keys at ${path}; start the installation once with npm start, or name its folder with --state-dir`,
      { cause },
    );
  }
}

async function requireListening(url: string): Promise<void> {
  try {
    const response = await fetch(`${url}/healthz`, { signal: AbortSignal.timeout(5_000) });
    await response.body?.cancel();
  } catch (cause) {
    throw new FulgurError("ERR_UPSTREAM", `nothing listens on ${url}; start it with npm start`, { cause });
  }
}
