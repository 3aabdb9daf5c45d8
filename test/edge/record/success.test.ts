import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { SuccessRules } from "#shared/agent-settings.ts";
import { checkSuccessRules, isSuccess } from "../../../edge/record/success.ts";

describe("isSuccess", () => {
  it("without rules takes an error key or a text that begins with error for a failure", () => {
    const cases: readonly (readonly [string, boolean])[] = [
      ['{"error": "unknown city"}', false],
      [' {"error": {"code": 404}}', false],
      ["Error: timed out", false],
      ["  ERROR", false],
      ["error", false],
      ['{"error": null, "rows": []}', true],
      ['{"message": "no error at all"}', true],
      ['{"error": broken', true],
      ['["error"]', true],
      ["no errors found", true],
      ["", true],
    ];
    expect(cases.map(([text]) => [text, isSuccess(text)])).toEqual(cases);
  });

  it("with rules holds to those alone, and to each of them", () => {
    const cases: readonly (readonly [SuccessRules, string, boolean])[] = [
      [{}, "Error: but no rule says so", true],
      [{ json_error_fields: ["err", "fault"] }, '{"fault": "x"}', false],
      [{ json_error_fields: ["err"] }, '{"err": false}', true],
      [{ json_error_fields: ["err"] }, '[{"err": 1}]', true],
      [{ json_error_fields: ["toString"] }, "{}", true],
      [{ error_prefixes: ["Traceback", "fatal:"] }, "  TRACEBACK (most recent", false],
      [{ error_prefixes: ["fatal:"] }, "not fatal: at all", true],
      [{ error_pattern: "(?i)not found" }, "Page NOT FOUND", false],
      [{ success_pattern: "^OK" }, "OK 12 rows", true],
      [{ success_pattern: "^OK" }, "12 rows", false],
      [{ http_error_from: 400 }, '{"status": 404}', false],
      [{ http_error_from: 400 }, '{"status_code": "500"}', false],
      [{ http_error_from: 400 }, '{"status": 204}', true],
      [{ http_error_from: 400 }, '{"status": "done"}', true],
      [{ http_error_from: 400 }, "status 500", true],
      [{ empty_is_error: true }, " ", false],
      [{ empty_is_error: true }, "[ ]", false],
      [{ empty_is_error: true }, "{}", false],
      [{ empty_is_error: true }, "[0]", true],
      [{ empty_is_error: false }, "", true],
      [{ success_pattern: "rows", http_error_from: 500 }, '{"status": 503, "rows": []}', false],
    ];
    expect(cases.map(([rules, text]) => [rules, text, isSuccess(text, rules)])).toEqual(cases);
  });

  it("knows nothing where a pattern cannot be used", () => {
    expect(isSuccess("x", { error_pattern: "(" })).toBeUndefined();
    expect(() => checkSuccessRules({ success_pattern: "(" })).toThrow(/cannot be used/);
    expect(() => checkSuccessRules({ error_pattern: "no|none" })).not.toThrow();
  });

  it("takes any text", () => {
    const rules: SuccessRules = {
      json_error_fields: ["e"],
      error_prefixes: ["e"],
      error_pattern: "e+$",
      http_error_from: 400,
      empty_is_error: true,
    };
    fc.assert(
      fc.property(fc.oneof(fc.string(), fc.json()), (text) => {
        expect(typeof isSuccess(text, rules)).toBe("boolean");
      }),
    );
  });
});
