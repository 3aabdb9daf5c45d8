import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { recordCall } from "#shared/store/calls.ts";
import { storedHistory, type HistoryOptions } from "../../../../edge/proxy/translated/history.ts";
import { Capture } from "../../../../edge/proxy/capture.ts";
import { startTestStore, type TestStore } from "../../../support/store.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startTestStore();
});
afterAll(() => store.stop());

const toolCall = { id: "call_1", type: "function" as const, function: { name: "add", arguments: '{"a":1}' } };

interface Answered {
  readonly request: object;
  readonly content?: string;
  readonly toolCalls?: readonly (typeof toolCall)[];
  readonly rolloutId?: string;
}

/** Records a call and returns the id of its response. */
async function answered({ request, content, toolCalls = [], rolloutId = "ro_1" }: Answered): Promise<string> {
  const id = newId("call");
  const capture = new Capture({
    id,
    tenantId: "default",
    rolloutId,
    attempt: 1,
    mode: "train",
    dialect: "responses",
    modelAsked: "flight",
    requestText: JSON.stringify({ model: "flight", ...request }),
    startedAt: 1,
  });
  capture.content = content ?? null;
  capture.toolCalls.push(...toolCalls);
  await store.writer.append([recordCall(capture.record({ httpStatus: 200, error: null, now: 2 }))]);
  return id.replace("ca_", "resp_");
}

function history(options: Partial<HistoryOptions> = {}): ReturnType<typeof storedHistory> {
  return storedHistory({
    db: () => store.db,
    writer: store.writer,
    tenantId: "default",
    rolloutId: "ro_1",
    ...options,
  });
}

describe("what a previous_response_id stands for", () => {
  it("is every request before it with its answer, without the instructions of earlier ones", async () => {
    const first = await answered({ request: { input: "Add 1.", instructions: "be brief" }, toolCalls: [toolCall] });
    const second = await answered({
      request: {
        previous_response_id: first,
        instructions: "be long",
        input: [{ type: "function_call_output", call_id: "call_1", output: "42" }],
      },
      content: "It is 42.",
    });
    const third = await answered({
      request: { previous_response_id: second, input: [{ role: "user", content: "Sure?" }] },
      content: "Yes.",
    });
    expect(await history().history(third)).toEqual([
      { role: "user", content: "Add 1." },
      { role: "assistant", content: null, tool_calls: [toolCall] },
      { role: "tool", tool_call_id: "call_1", content: "42" },
      { role: "assistant", content: "It is 42." },
      { role: "user", content: "Sure?" },
      { role: "assistant", content: "Yes." },
    ]);
    expect(await history().answer(first)).toEqual({ role: "assistant", content: null, tool_calls: [toolCall] });
  });

  it("is read in one question however long it is", async () => {
    let previous = await answered({ request: { input: "0" }, content: "zero" });
    for (const n of [1, 2, 3, 4, 5]) {
      previous = await answered({ request: { input: String(n), previous_response_id: previous }, content: `n${n}` });
    }
    let asked = 0;
    const db = (): TestStore["db"] => {
      asked++;
      return store.db;
    };
    expect(await history({ db }).history(previous)).toHaveLength(12);
    expect(asked).toBe(1);
  });

  it("is nothing of another rollout's or tenant's", async () => {
    const other = await answered({ request: { input: "secret" }, content: "secret", rolloutId: "ro_2" });
    await expect(history().history(other)).rejects.toMatchObject({ code: "ERR_INVALID_REQUEST" });
    await expect(history({ rolloutId: "ro_2", tenantId: "other" }).history(other)).rejects.toThrow("no response");
    const reaching = await answered({ request: { input: "x", previous_response_id: other }, content: "y" });
    await expect(history().history(reaching)).rejects.toThrow(other);
    expect(await history({ rolloutId: "ro_2" }).history(other)).toHaveLength(2);
  });

  it("that waits in the outbox is asked for again", async () => {
    const status = (): ReturnType<TestStore["writer"]["status"]> =>
      Promise.resolve({ storeUp: false, outbox: 3 } as Awaited<ReturnType<TestStore["writer"]["status"]>>);
    await expect(history({ writer: { status } }).history("resp_none")).rejects.toMatchObject({ code: "ERR_STORE" });
  });
});
