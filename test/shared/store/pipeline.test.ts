import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { openPipeline, type Pipeline } from "#shared/store/pipeline.ts";
import type { Statement } from "#shared/store/statement.ts";
import { startTestStore, type TestStore } from "../../support/store.ts";

const select = (value: number): Statement => ({ sql: "select ? as v", args: [value] });

describe("a pipeline on a real server", () => {
  let store: TestStore;
  let pipeline: Pipeline;
  beforeAll(async () => {
    store = await startTestStore();
    pipeline = openPipeline({ url: store.url, token: store.keys.writeToken, keepStream: true });
  });
  afterAll(() => store.stop());

  const insert = (id: number): Statement => ({ sql: "insert into probes (id, touched_at) values (?, 0)", args: [id] });
  const count = async (): Promise<unknown> =>
    (await pipeline.run([{ sql: "select count(*) as n from probes", args: [] }]))[0]?.[0]?.["n"];

  it("runs all statements or none", async () => {
    await expect(pipeline.run([insert(1), insert(2), insert(1)])).rejects.toMatchObject({ code: "ERR_CONFLICT" });
    expect(await count()).toBe(0);
    await pipeline.run([insert(1), insert(2)], { rows: "none" });
    expect(await count()).toBe(2);
  });

  it("goes on after a refused run, and after the server was killed and is back", async () => {
    await expect(pipeline.run([insert(1)])).rejects.toMatchObject({ code: "ERR_CONFLICT" });
    expect(await pipeline.run([select(7)])).toEqual([[{ v: 7 }]]);
    await store.kill();
    await expect(pipeline.run([select(7)])).rejects.toMatchObject({ code: "ERR_STORE" });
    await store.restart();
    expect(await count()).toBe(2);
    await store.kill();
    await store.restart();
    // Its stream died with the server in between, unseen.
    expect(await count()).toBe(2);
  });

  it("keeps runs at the same time apart", async () => {
    const values = Array.from({ length: 20 }, (_, at) => at);
    const rows = await Promise.all(values.map((value) => pipeline.run([select(value)])));
    expect(rows.map((sets) => sets[0]?.[0]?.["v"])).toEqual(values);
  });

  it("takes a SQL text longer than the server keeps", async () => {
    const long = { sql: `select 7 as v /* ${"é".repeat(10_000)} */`, args: [] };
    expect(await pipeline.run([long, long])).toEqual([[{ v: 7 }], [{ v: 7 }]]);
  });

  it("takes more different SQL texts than the server keeps, one by one and all at once", async () => {
    const texts = Array.from({ length: 120 }, (_, at) => ({ sql: `select ${at} as v`, args: [] }));
    for (const [at, text] of texts.entries()) expect(await pipeline.run([text])).toEqual([[{ v: at }]]);
    expect(await pipeline.run(texts)).toEqual(texts.map((_, at) => [{ v: at }]));
  });
});

describe("a pipeline's requests", () => {
  interface Sent {
    readonly baton: string | null;
    readonly requests: readonly { readonly type: string }[];
  }

  /** A pipeline whose server answers what it is told to. */
  function answering(...answers: readonly (readonly [status: number, body: unknown])[]) {
    const sent: Sent[] = [];
    const send: typeof fetch = async (_url, init) => {
      sent.push(JSON.parse(typeof init?.body === "string" ? init.body : "") as Sent);
      const [status, body] = answers[sent.length - 1] ?? [500, "no more answers"];
      return new Response(typeof body === "string" ? body : JSON.stringify(body), { status });
    };
    return { sent, pipeline: openPipeline({ url: "http://store", token: "t", keepStream: true, fetch: send }) };
  }

  const done = (baton: string): unknown => ({
    baton,
    results: [
      {
        type: "ok",
        response: {
          type: "batch",
          result: {
            step_results: [
              { cols: [], rows: [] },
              { cols: [{ name: "v" }], rows: [[{ type: "integer", value: "7" }]] },
              { cols: [], rows: [] },
              null,
            ],
            step_errors: [null, null, null, null],
          },
        },
      },
    ],
  });

  it("sends a text once per stream, and anew when the server has ended the stream", async () => {
    const { sent, pipeline } = answering(
      [200, done("one")],
      [200, done("two")],
      [400, { message: "The stream has expired due to inactivity", code: "STREAM_EXPIRED" }],
      [200, done("three")],
    );
    for (let run = 0; run < 3; run++) expect(await pipeline.run([select(7)])).toEqual([[{ v: 7 }]]);
    expect(sent.map(({ baton }) => baton)).toEqual([null, "one", "two", null]);
    expect(sent.map(({ requests }) => requests.map(({ type }) => type))).toEqual([
      ["store_sql", "batch"],
      ["batch"],
      ["batch"],
      ["store_sql", "batch"],
    ]);
  });

  it.each([
    [401, "no", "ERR_STORE"],
    [429, "busy", "ERR_STORE"],
    [502, "<html>", "ERR_STORE"],
    [400, "bad", "ERR_CONFLICT"],
    [413, "large", "ERR_CONFLICT"],
    [200, "not json", "ERR_STORE"],
    [200, { results: "odd" }, "ERR_STORE"],
    [200, { results: [] }, "ERR_STORE"],
    [200, { results: [{ type: "error", error: { message: "m", code: "SQLITE_BUSY" } }] }, "ERR_STORE"],
    [200, { results: [{ type: "error", error: { message: "m", code: "SQLITE_IOERR" } }] }, "ERR_DISK"],
    [200, { results: [{ type: "error", error: { message: "m", code: "SQLITE_CONSTRAINT" } }] }, "ERR_CONFLICT"],
  ])("takes status %i with %j for %s, and starts a new stream after it", async (status, body, code) => {
    const { sent, pipeline } = answering([200, done("one")], [status, body], [200, done("two")]);
    await pipeline.run([select(7)]);
    await expect(pipeline.run([select(7)])).rejects.toMatchObject({ code });
    await pipeline.run([select(7)]);
    expect(sent.map(({ baton }) => baton)).toEqual([null, "one", null]);
  });

  it("does not take a batch for written whose commit gave no result", async () => {
    const uncommitted = {
      baton: "b",
      results: [
        {
          type: "ok",
          response: {
            type: "batch",
            result: {
              step_results: [{ cols: [], rows: [] }, { cols: [], rows: [] }, null, null],
              step_errors: [null, null, null, null],
            },
          },
        },
      ],
    };
    const { pipeline } = answering([200, uncommitted]);
    await expect(pipeline.run([select(7)])).rejects.toMatchObject({ code: "ERR_STORE" });
  });
});
