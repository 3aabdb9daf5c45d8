import { z } from "zod";

/** Which LLM users of an agent a policy is trained on; the others are frozen, whatever answered them. */
export const selectionSchema = z.strictObject({
  /** Roles, as calls name themselves; absent is all. */
  roles: z.array(z.string().min(1)).min(1).optional(),
  /** Agents, where one policy serves several; absent is all. */
  agents: z.array(z.string().min(1)).min(1).optional(),
});
export type Selection = z.infer<typeof selectionSchema>;

/**
 * The calls of a rollout that become transitions: those of selected roles, where the rollout is of a selected agent.
 * Credit is assigned to what is left, so that a frozen checker between two calls of the writer neither takes a share of
 * a discounted return nor is pulled.
 */
export function selectCalls<Call extends { readonly role: string }>(
  calls: readonly Call[],
  agent: string,
  { roles, agents }: Selection,
): readonly Call[] {
  if (agents !== undefined && !agents.includes(agent)) return [];
  return roles === undefined ? calls : calls.filter((call) => roles.includes(call.role));
}
