import { FulgurError } from "#shared/errors.ts";
import type { Principal } from "#shared/tokens.ts";

/** Who may tell of a rollout what its agent or its users know. */

const SCOPES: ReadonlySet<string> = new Set(["agent", "trainer", "admin"]);

/** The rollout's own token, or scope agent, trainer or admin. @throws FulgurError ERR_FORBIDDEN */
export function requireOwnerOrAgent(principal: Principal, rolloutId: string): void {
  if (principal.rollout?.rolloutId === rolloutId && principal.scopes.includes("call")) return;
  if (principal.scopes.some((scope) => SCOPES.has(scope))) return;
  throw new FulgurError("ERR_FORBIDDEN", "this route needs the rollout's own token, or scope agent or trainer");
}

/** A key that is for one agent speaks of that agent's rollouts alone. @throws FulgurError ERR_FORBIDDEN */
export function requireKeyAgent(principal: Principal, agent: string): void {
  if (principal.keyAgent === undefined || principal.keyAgent === agent) return;
  throw new FulgurError("ERR_FORBIDDEN", `this key is for agent ${principal.keyAgent}`);
}
