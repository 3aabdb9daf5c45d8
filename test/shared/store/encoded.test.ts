import { describe, expect, it } from "vitest";
import { encoded } from "#shared/store/encoded.ts";

describe("encoded", () => {
  it("writes each kind of value in the form in which libSQL takes it", () => {
    const { sql, argsJson } = encoded({
      sql: "insert",
      args: [null, 'a "quoted" ü\n', 7, -1, 1.5, 2 ** 60, new Uint8Array([0, 255])],
    });
    expect(sql).toBe("insert");
    expect(JSON.parse(argsJson)).toEqual([
      { type: "null" },
      { type: "text", value: 'a "quoted" ü\n' },
      { type: "integer", value: "7" },
      { type: "integer", value: "-1" },
      { type: "float", value: 1.5 },
      { type: "float", value: 2 ** 60 },
      { type: "blob", base64: "AP8=" },
    ]);
  });

  it("leaves alone what is encoded already", () => {
    const once = encoded({ sql: "delete", args: [] });
    expect(once.argsJson).toBe("[]");
    expect(encoded(once)).toBe(once);
  });
});
