import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { encoded } from "#shared/store/encoded.ts";
import type { EncodedStatement, Statement } from "#shared/store/statement.ts";
import { startTestWriter, type TestWriter } from "../../support/writer.ts";
import { withBytes, withoutBytes } from "../../support/bytes-in-json.ts";
import type { OutboxStep } from "./writer-worker.ts";

describe("outbox", () => {
  let host: TestWriter;
  beforeAll(async () => {
    host = await startTestWriter({ storeUrl: "http://127.0.0.1:9", storeToken: "none" });
  });
  afterAll(() => host.stop());

  async function run(...steps: OutboxStep[]): Promise<unknown> {
    const response = await fetch(`${host.url}/outbox`, {
      method: "POST",
      body: JSON.stringify(steps, withoutBytes),
    });
    return JSON.parse(await response.text(), withBytes);
  }

  const unit = (...args: Statement["args"]): EncodedStatement[] => [encoded({ sql: "insert", args })];
  const all = { units: 9, bytes: 1e9 };

  it("gives units back as they were put, oldest first, bytes and numbers included", async () => {
    const units = [unit("a", 1.5, null, new Uint8Array([0, 255])), [...unit("b"), ...unit("c")]];
    expect(
      await run(
        { do: "put", units },
        { do: "put", units: [unit("d")] },
        { do: "take", ...all },
        { do: "peek", ...all },
      ),
    ).toEqual([2, 3, [...units, unit("d")], []]);
  });

  it("gives as many units as asked for, and one larger than the limit alone", async () => {
    const large = unit("x".repeat(1000));
    expect(
      await run(
        { do: "put", units: [unit("a"), large, unit("b"), unit("c")] },
        { do: "take", units: 9, bytes: 500 },
        { do: "take", units: 9, bytes: 500 },
        { do: "take", units: 1, bytes: 500 },
        { do: "take", units: 9, bytes: 500 },
      ),
    ).toEqual([4, [unit("a")], [large], [unit("b")], [unit("c")]]);
  });

  it("keeps a unit that is larger than a row of the Durable Object's database", async () => {
    const large = unit("é".repeat(1_400_000), "end");
    expect(await run({ do: "put", units: [large, unit("next")] }, { do: "reopen" }, { do: "take", ...all })).toEqual([
      2,
      2,
      [large, unit("next")],
    ]);
  });

  it("refuses more than it may hold and keeps what it has, also when opened again", async () => {
    const four = [unit("1"), unit("2"), unit("3"), unit("4")];
    expect(
      await run(
        { do: "put", units: four },
        { do: "put", units: [unit("5"), unit("6")] },
        { do: "reopen" },
        { do: "put", units: [unit("x".repeat(3_000_000))] },
        { do: "put", units: [unit("5")] },
        { do: "put", units: [unit("6")] },
        { do: "peek", ...all },
      ),
    ).toEqual([4, "ERR_STORE", 4, "ERR_STORE", 5, "ERR_STORE", [...four, unit("5")]]);
  });

  it("sets a refused unit aside with the reason, out of the others' way", async () => {
    expect(
      await run(
        { do: "put", units: [unit("bad"), unit("good")] },
        { do: "aside", reason: "no such table" },
        { do: "peek", ...all },
      ),
    ).toEqual([
      2,
      [{ reason: "no such table", body: JSON.stringify([["insert", encoded({ sql: "", args: ["bad"] }).argsJson]]) }],
      [unit("good")],
    ]);
  });
});
