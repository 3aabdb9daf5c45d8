import { describe, expect, it } from "vitest";
import { encoded, gathered } from "#shared/store/encoded.ts";

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

describe("gathered", () => {
  const count = (...row: (string | number)[]) =>
    ({ sql: "count", args: [JSON.stringify([row])], gathers: true }) as const;
  const insert = (id: string) => ({ sql: "insert", args: [id] });

  it("runs statements that gather once, where the first of them stands, with the rows of all", () => {
    const { statements, places } = gathered([
      insert("a"),
      count("a", 1),
      insert("b"),
      encoded(count('b"', 2)),
      insert("c"),
    ]);
    expect(statements.map(({ sql }) => sql)).toEqual(["insert", "count", "insert", "insert"]);
    const [{ value }] = JSON.parse(statements[1]?.argsJson ?? "") as [{ value: string }];
    expect(JSON.parse(value)).toEqual([
      ["a", 1],
      ['b"', 2],
    ]);
    expect(places).toEqual([0, 1, 2, 1, 3]);
  });

  it("leaves one alone, and others of another SQL", () => {
    const given = [count("a"), { ...count("b"), sql: "other" }].map(encoded);
    expect(gathered(given)).toEqual({ statements: given, places: [0, 1] });
  });
});
