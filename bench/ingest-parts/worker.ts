import { newId } from "#shared/ids.ts";
import { packFloats, packIds } from "#shared/packed.ts";
import { recordCall, type CallRecord } from "#shared/store/calls.ts";
import { gatheringWriter } from "../../edge/record/gather.ts";
import { storeWriter, type WriterStub } from "../../edge/record/writer-client.ts";

export { Writer } from "../../edge/record/writer.ts";

/**
 * The load of bench/ingest.ts, inside workerd: loops that record one call after the other, in the way in which the proxy
 * does. `GET /load?loops=64&ms=5000` answers {@link LoadReport}.
 */

interface Env {
  readonly WRITER: {
    idFromName(name: string): unknown;
    get(id: unknown): WriterStub;
  };
}

export interface LoadReport {
  /** Records that the writer acknowledged. */
  readonly acknowledged: number;
  readonly failed: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  /** What a record holds: its texts and blobs. */
  readonly recordBytes: number;
}

// oxlint-disable-next-line import/no-default-export -- workerd takes a module's default export as the Worker
export default {
  async fetch(request: Request, env: Env): Promise<Response> {
    const { searchParams } = new URL(request.url);
    const stub = env.WRITER.get(env.WRITER.idFromName("writer"));
    const writer = gatheringWriter(env, () => storeWriter(stub));
    const until = Date.now() + Number(searchParams.get("ms"));
    const times: number[] = [];
    let failed = 0;
    const loop = async (): Promise<void> => {
      for (let now = Date.now(); now < until;) {
        try {
          await writer.append([recordCall(record(now))]);
        } catch {
          failed++;
        }
        const after = Date.now();
        times.push(after - now);
        now = after;
      }
    };
    await Promise.all(Array.from({ length: Number(searchParams.get("loops")) }, loop));
    times.sort((a, b) => a - b);
    const report: LoadReport = {
      acknowledged: times.length - failed,
      failed,
      p50Ms: times[Math.floor(times.length * 0.5)] ?? 0,
      p99Ms: times[Math.floor(times.length * 0.99)] ?? 0,
      recordBytes: bytesOf(record(0)),
    };
    return Response.json(report);
  },
};

const PROMPT_TOKENS = 700;
const RESPONSE_TOKENS = 256;
const REQUEST = JSON.stringify({
  model: "gpt-5-mini",
  messages: [{ role: "user", content: "Which flight should Ada take from Rome to Lisbon? ".repeat(60) }],
});
const RESPONSE = JSON.stringify({ role: "assistant", content: "The one at 9:40, by way of Oslo. ".repeat(68) });
const PROMPT_IDS = packIds(Array.from({ length: PROMPT_TOKENS }, (_, at) => at * 37));
const RESPONSE_IDS = packIds(Array.from({ length: RESPONSE_TOKENS }, (_, at) => at * 41));
const LOGPROBS = packFloats(Array.from({ length: RESPONSE_TOKENS }, (_, at) => -at / 100));

/** A call as the proxy records it: 10 KB of texts, token ids and logprobs. */
function record(now: number): CallRecord {
  return {
    id: newId("call"),
    tenantId: "default",
    rolloutId: `ro_ingest${now % 64}`,
    attempt: 1,
    mode: "train",
    dialect: "chat",
    modelAsked: "gpt-5-mini",
    policy: "flight",
    policyVersion: 13,
    modelAnswered: "flight@13",
    request: REQUEST,
    response: RESPONSE,
    promptTokens: PROMPT_TOKENS,
    completionTokens: RESPONSE_TOKENS,
    promptTokenIds: PROMPT_IDS,
    responseTokenIds: RESPONSE_IDS,
    behaviourLogprobs: LOGPROBS,
    temperature: 1,
    finishReason: "stop",
    httpStatus: 200,
    trainable: true,
    firstByteMs: 3,
    latencyMs: 12.5,
    createdAt: now,
  };
}

function bytesOf(call: CallRecord): number {
  return Object.values(call).reduce(
    (sum: number, value) =>
      sum + (typeof value === "string" ? value.length : value instanceof Uint8Array ? value.byteLength : 0),
    0,
  );
}
