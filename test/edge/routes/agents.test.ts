import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { AgentSettingsInput } from "#shared/agent-settings.ts";
import { startTestEdge, type TestEdge } from "../../support/edge.ts";

/** What of an agent's settings `PUT /v1/agents/:name` refuses; access.test.ts has the rest of the route. */

let edge: TestEdge;
beforeAll(async () => {
  edge = await startTestEdge();
});
afterAll(() => edge.stop());

describe("settings that would fail only later", () => {
  const cases: readonly (readonly [string, AgentSettingsInput, RegExp])[] = [
    ["an evaluator's pattern", { evaluator: { type: "exact_match", answer_pattern: "(" } }, /"\(" cannot be used/],
    ["look-around", { evaluator: { type: "numeric", answer_pattern: "(?=x)" } }, /look-around/],
    [
      "a schema that refers nowhere",
      { evaluator: { type: "json_schema", schema: { $ref: "#/nowhere" } } },
      /which is not in it/,
    ],
    ["a worker without a place", { evaluator: { type: "worker" } }, /binding or a url/],
    ["the edge's own binding", { evaluator: { type: "worker", binding: "WRITER" } }, /EVAL_…, not WRITER/],
    ["a success rule", { tools: { search: { weight: 1, success: { error_pattern: "[" } } } }, /"\[" cannot be used/],
    ["a redaction's pattern", { live: { redact: [{ pattern: "(a" }] } }, /"\(a" cannot be used/],
    ["a redaction's path", { live: { redact: [{ path: "$.a..b" }] } }, /path "\$\.a\.\.b" cannot be used/],
  ];

  it.each(cases)("are refused when they are written: %s", async (_what, settings, why) => {
    await expect(edge.admin.putAgent("strict", { policy: "flight", ...settings })).rejects.toMatchObject({
      code: "ERR_INVALID_REQUEST",
      message: expect.stringMatching(why),
    });
    await expect(edge.admin.readAgent("strict")).rejects.toMatchObject({ code: "ERR_NOT_FOUND" });
  });
});
