import type { AgentSettings } from "#shared/agent-settings.ts";
import { checkEvaluator } from "./evaluators/table.ts";
import { checkRedaction } from "./redact.ts";
import { checkSuccessRules } from "./success.ts";

/**
 * Refuses, when an agent is set up, whatever of its settings would fail only later: in the middle of a call, or when a
 * rollout is judged.
 * @throws FulgurError ERR_INVALID_REQUEST naming the pattern, path or evaluator that cannot be used
 */
export function checkAgentSettings({
  success,
  evaluator,
  live,
}: Pick<AgentSettings, "success" | "evaluator" | "live">): void {
  for (const rules of Object.values(success)) checkSuccessRules(rules);
  if (evaluator !== undefined) checkEvaluator(evaluator);
  for (const rule of live.redact) checkRedaction(rule);
}
