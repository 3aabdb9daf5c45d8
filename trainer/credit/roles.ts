/**
 * The calls of a rollout that become transitions: those of selected roles, as the agent's model map names them; all
 * where none is selected. The other LLM users of the agent are frozen, whatever answered them. Credit is assigned to
 * what is left, so that a frozen checker between two calls of the writer neither takes a share of a discounted return
 * nor is pulled.
 * @see arXiv:2508.03680, selective optimisation
 */
export function selectCalls<Call extends { readonly role: string }>(
  calls: readonly Call[],
  roles: readonly string[] | undefined,
): readonly Call[] {
  return roles === undefined ? calls : calls.filter((call) => roles.includes(call.role));
}
