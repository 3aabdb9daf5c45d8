import { describe, expect, it } from "vitest";
import { agentSettingsSchema, type AgentSettingsInput } from "#shared/agent-settings.ts";
import { checkAgentSettings } from "../../../edge/record/agent-check.ts";

describe("checkAgentSettings", () => {
  const check = (settings: AgentSettingsInput) => () => checkAgentSettings(agentSettingsSchema.parse(settings));

  it("takes settings that can be applied", () => {
    expect(check({})).not.toThrow();
    expect(
      check({
        tools: { memory: { weight: 0.3, success: { error_pattern: "no|none" } }, search: 0.2 },
        evaluator: { type: "exact_match", answer_pattern: "is (.*)" },
        live: { redact: [{ pattern: "\\d+" }, { path: "$.user" }] },
      }),
    ).not.toThrow();
  });

  it.each<readonly [string, AgentSettingsInput, RegExp]>([
    ["a tool's pattern", { tools: { a: { weight: 1, success: { success_pattern: "(" } } } }, /pattern "\("/],
    ["an evaluator's pattern", { evaluator: { type: "token_f1", answer_pattern: "(?=x)" } }, /look-around/],
    ["an evaluator without a way to it", { evaluator: { type: "worker" } }, /binding or a url/],
    ["an evaluator at the edge's own store", { evaluator: { type: "worker", binding: "STORE" } }, /EVAL_/],
    ["a redaction's pattern", { live: { redact: [{ pattern: "(a)\\1" }] } }, /cannot be used/],
    ["a redaction's path", { live: { redact: [{ path: "$.a..b" }] } }, /path/],
  ])("refuses %s that could not be", (_what, settings, why) => {
    expect(check(settings)).toThrow(why);
  });
});
