import { join } from "node:path";
import { build, stop as stopEsbuild } from "esbuild";
import { Miniflare } from "miniflare";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { COMPATIBILITY_DATE } from "../../../../cli/parts/edge-host.ts";

const ENTRY = join(import.meta.dirname, "../../../../edge/evaluators/sql/worker.ts");
const SETUP = `create table flights (code text, price real, city text);
  insert into flights values ('SAS12', 100.1, 'Oslo'), ('KLM34', 200.2, 'Rome'), ('AF56', 300.3, 'Rome');`;

let runtime: Miniflare;
let url: URL;
beforeAll(async () => {
  const { outputFiles } = await build({
    entryPoints: [ENTRY],
    bundle: true,
    write: false,
    format: "esm",
    external: ["cloudflare:*"],
    logLevel: "silent",
  });
  await stopEsbuild();
  runtime = new Miniflare({
    host: "127.0.0.1",
    port: 0,
    cf: false,
    telemetry: { enabled: false },
    workers: [
      {
        config: {
          name: "sql",
          compatibilityDate: COMPATIBILITY_DATE,
          manifest: {
            mainModule: "worker.mjs",
            modulesRoot: "/",
            modules: { "worker.mjs": { type: "esm", contents: outputFiles[0]?.text ?? "" } },
          },
          exports: { Database: { type: "durable-object", storage: "sqlite" } },
          env: { DATABASE: { type: "durable-object", worker: "sql", exportName: "Database" } },
        },
      },
    ],
  });
  url = await runtime.ready;
});
afterAll(() => runtime.dispose());

async function match(query: string, expected: string, setup = SETUP): Promise<{ status: number; body: unknown }> {
  const response = await fetch(url, { method: "POST", body: JSON.stringify({ setup, query, expected }) });
  return { status: response.status, body: await response.json() };
}

describe("the SQL evaluator", () => {
  it.each([
    ["select code from flights where city = 'Rome'", "select code c from flights where price > 150", true],
    ["select code from flights order by price desc", "select code from flights", true],
    ["select code from flights order by price desc", "select code from flights order by price", false],
    ["select price * 3 from flights", "select price + price + price from flights", true],
    ["select count(*) from flights", "select 3", true],
    ["select code from flights limit 1", "select code from flights", false],
    ["select code, city from flights", "select code from flights", false],
    ["select null", "select 0", false],
  ])("compares the rows of %s with those of %s", async (query, expected, equal) => {
    expect(await match(query, expected)).toEqual({ status: 200, body: { ran: true, equal } });
  });

  it("says that a query does not run", async () => {
    expect(await match("selec code", "select 1")).toMatchObject({
      status: 200,
      body: { ran: false, equal: false, error: expect.stringContaining("syntax error") },
    });
    expect(await match("select * from nothing", "select 1")).toMatchObject({ body: { ran: false } });
    expect(await match("attach 'x' as y", "select 1")).toMatchObject({ body: { ran: false } });
    const many = "with recursive n(i) as (select 1 union all select i + 1 from n) select i from n";
    expect(await match(many, "select 1")).toMatchObject({
      body: { ran: false, error: expect.stringContaining("10000 rows") },
    });
  });

  it("keeps nothing: neither what setup made nor what a query changed", async () => {
    expect(await match("delete from flights returning code", "select code from flights")).toMatchObject({
      body: { ran: true, equal: true },
    });
    expect(await match("select count(*) from flights", "select 3")).toMatchObject({ body: { equal: true } });
    expect(await match("select 1", "select * from flights", "")).toMatchObject({
      status: 422,
      body: { error: expect.stringContaining("no such table") },
    });
  });

  it("refuses what is not a question", async () => {
    const refused = await fetch(url, { method: "POST", body: '{"setup": 1}' });
    expect(refused.status).toBe(400);
    expect((await fetch(url)).status).toBe(405);
  });
});
