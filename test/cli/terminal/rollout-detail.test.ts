import { expect, test } from "vitest";
import type { CallView, RolloutDetail } from "#shared/wire.ts";
import { rolloutDetailText } from "../../../cli/terminal/rollout-detail.ts";
import { rolloutsTable } from "../../../cli/terminal/rollouts-table.ts";
import { PLAIN } from "../../../cli/terminal/style.ts";

const memoryCall = { id: "call_1", function: { name: "memory", arguments: '{"traveller":"Ana"}' } };
const asked = [
  { role: "system", content: "You book flights." },
  { role: "user", content: 'Get "Ana" from "Oslo" to "Rome".' },
];

function call(id: string, more: Partial<CallView>): CallView {
  return {
    id,
    attempt: 1,
    role: "main",
    dialect: "chat",
    modelAsked: "gpt-4o-mini",
    version: "flight@3",
    request: { messages: asked },
    response: { role: "assistant", content: null, tool_calls: [memoryCall] },
    promptTokens: 40,
    completionTokens: 2,
    promptTokenIds: [1],
    responseTokenIds: [5, 6],
    responseTokens: null,
    behaviourLogprobs: [-0.5, -0.1],
    finishReason: "tool_calls",
    httpStatus: 200,
    error: null,
    trainable: true,
    firstByteMs: 3,
    latencyMs: 21.4,
    createdAt: 1,
    ...more,
  };
}

const detail: RolloutDetail = {
  rollout: {
    id: "ro_1",
    runId: "ru_1",
    taskId: "flight-train-1",
    groupId: "gr_1",
    agent: "flight",
    mode: "train",
    pin: null,
    status: "finished",
    attempt: 1,
    reward: 0.65,
    outcome: { status: 0.3, terminal: 1, correctness: 1, format: 1, tools: ["memory"] },
    result: 'Booked "SAS12".',
    error: null,
    disposition: "dropped",
    dropReason: "zero_spread",
    createdAt: 1000,
    startedAt: 1001,
    finishedAt: 2000,
  },
  attempts: [{ attempt: 1, status: "finished", error: null, startedAt: 1001, finishedAt: 2000 }],
  calls: [
    call("ca_1", {}),
    call("ca_2", {
      request: {
        messages: [
          ...asked,
          { role: "assistant", content: null, tool_calls: [memoryCall] },
          { role: "tool", tool_call_id: "call_1", content: '{"airline":"SAS"}' },
        ],
      },
      response: { role: "assistant", content: 'Booked "SAS12".' },
      finishReason: "stop",
      trainable: false,
      behaviourLogprobs: null,
    }),
  ],
  rewards: [
    { id: "re_1", callId: "ca_1", attempt: 1, source: "air", name: "memory", value: 0.3, createdAt: 1 },
    { id: "re_2", callId: null, attempt: 1, source: "terminal", name: "terminal", value: 1, createdAt: 2 },
  ],
  batch: { id: "ba_1", step: 4, status: "trained" },
};

test("a rollout reads as its outcome, its conversation, its calls and its rewards", () => {
  expect(rolloutDetailText(detail, PLAIN).split("\n")).toEqual([
    "ro_1  flight  train  finished  reward 0.650  dropped: zero spread  batch of step 4 (trained)",
    "tool status 0.30, terminal 1.00 (correctness 1, format 1)",
    "",
    "   system  You book flights.",
    '     user  Get "Ana" from "Oslo" to "Rome".',
    'assistant  memory({"traveller":"Ana"})',
    '     tool  {"airline":"SAS"}',
    'assistant  Booked "SAS12".',
    "",
    "2 calls",
    "  1  flight@3  40 → 2 tokens  mean logprob -0.300  21 ms  tool_calls",
    "  2  flight@3  40 → 2 tokens  21 ms  stop  not trainable",
    "",
    "rewards",
    "  0.300  air memory (call 1)",
    "  1.000  terminal terminal",
  ]);
});

test("the list has one line for each rollout, and says what to do when there is none", () => {
  const lines = rolloutsTable([detail.rollout], { now: 61_000, style: PLAIN }).split("\n");
  expect(lines).toHaveLength(2);
  expect(lines[1]?.trim().split(/ {2,}/)).toEqual([
    "ro_1",
    "flight",
    "train",
    "finished",
    "0.650",
    "memory",
    "dropped: zero spread",
    "1m00s",
  ]);
  expect(rolloutsTable([], { now: 0, style: PLAIN })).toContain("no rollouts yet");
});
