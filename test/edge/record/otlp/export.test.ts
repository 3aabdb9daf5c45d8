import { createServer, type Server } from "node:http";
import { once } from "node:events";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { recordCall } from "#shared/store/calls.ts";
import { startSelfRollout } from "#shared/store/rollouts.ts";
import { exportCalls, type Collector, type ExportDeps } from "../../../../edge/record/otlp/export.ts";
import * as json from "../../../../edge/record/otlp/json.ts";
import { startTestStore, type TestStore } from "../../../support/store.ts";

let store: TestStore;
let collector: Server;
let url: string;
/** What the collector is to answer, first to last; 200 when there is nothing left. */
let answers: number[];
let taken: { body: string; authorization: string | undefined }[];

beforeAll(async () => {
  store = await startTestStore();
  collector = createServer((request, response) => {
    let body = "";
    request.on("data", (piece) => (body += String(piece)));
    request.on("end", () => {
      const status = answers.shift() ?? 200;
      if (status === 200) taken.push({ body, authorization: request.headers.authorization });
      response.writeHead(status, status === 302 ? { location: "http://127.0.0.1:9/" } : {}).end("{}");
    });
  }).listen(0, "127.0.0.1");
  await once(collector, "listening");
  const address = collector.address();
  url = `http://127.0.0.1:${typeof address === "object" ? address?.port : 0}`;
});
afterAll(async () => {
  collector.close();
  await store.stop();
});
beforeEach(() => {
  answers = [];
  taken = [];
});

const deps = (): ExportDeps => ({
  db: store.db,
  writer: store.writer,
  fetch,
  now: () => 5,
  variable: (name) => (name === "OTLP_KEY" ? "secret" : undefined),
});

async function recordCalls(tenantId: string, number: number): Promise<void> {
  const rolloutId = newId("rollout");
  await store.writer.transact(
    startSelfRollout({ id: rolloutId, tenantId, agent: "flight", mode: "live", pin: null }, 1, 2),
  );
  await store.writer.append(
    Array.from({ length: number }, (_, index) =>
      recordCall({
        id: newId("call"),
        tenantId,
        rolloutId,
        attempt: 1,
        mode: "live",
        dialect: "chat",
        modelAsked: "gpt",
        policy: "flight",
        policyVersion: 3,
        modelAnswered: "flight@3",
        request: '{"messages":["a secret prompt"]}',
        response: '{"content":"a secret answer"}',
        promptTokens: 10,
        completionTokens: 2,
        httpStatus: index === 0 ? 502 : 200,
        error: index === 0 ? "inference failed" : null,
        trainable: false,
        latencyMs: 12.5,
        createdAt: 1_700_000_000_000,
      }),
    ),
  );
}

const spansTaken = () => taken.flatMap(({ body }) => json.readTraces(body));

describe("exportCalls", () => {
  it("sends each call once as a span, with what it cost and no content, and goes on where it stopped", async () => {
    const to: Collector = { tenantId: "export-a", url, keyEnv: "OTLP_KEY" };
    await recordCalls("export-a", 3);
    await recordCalls("somebody-else", 2);
    expect(await exportCalls(deps(), to)).toBe(3);
    expect(await exportCalls(deps(), to)).toBe(0);
    await recordCalls("export-a", 1);
    expect(await exportCalls(deps(), to)).toBe(1);
    const spans = spansTaken();
    expect(new Set(spans.map((span) => span.spanId)).size).toBe(4);
    expect(spans[0]).toMatchObject({
      name: "chat gpt",
      startedAt: 1_700_000_000_000,
      finishedAt: 1_700_000_000_012,
      failed: true,
      attributes: {
        "gen_ai.request.model": "gpt",
        "gen_ai.response.model": "flight@3",
        "gen_ai.usage.input_tokens": 10,
        "fulgur.policy_version": "flight@3",
      },
    });
    expect(JSON.stringify(taken)).not.toContain("a secret");
    expect(taken[0]?.authorization).toBe("Bearer secret");
  });

  it.each([500, 302])(
    "loses nothing to a collector that answers %i: the same calls go out the next time",
    async (status) => {
      const to: Collector = { tenantId: `export-${status}`, url: `${url}/v1/traces`, keyEnv: undefined };
      await recordCalls(to.tenantId, 2);
      answers = [status];
      expect(await exportCalls(deps(), to)).toBe(0);
      expect(taken).toEqual([]);
      expect(await exportCalls(deps(), to)).toBe(2);
      expect(spansTaken()).toHaveLength(2);
    },
  );

  it("sends nothing without the key that the tenant named", async () => {
    const to: Collector = { tenantId: "export-key", url, keyEnv: "OTLP_OTHER" };
    await recordCalls(to.tenantId, 1);
    expect(await exportCalls(deps(), to)).toBe(0);
    expect(taken).toEqual([]);
  });
});
