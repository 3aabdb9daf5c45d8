import { describe, expect, it } from "vitest";
import { packFloats, packIds } from "#shared/packed.ts";
import type { Call } from "#shared/store/calls.ts";
import { modelRequest } from "../../../../edge/routes/agl/model-request.ts";

const call: Call = {
  id: "ca_1",
  tenantId: "default",
  rolloutId: "ro_1",
  attempt: 1,
  role: "main",
  dialect: "chat",
  modelAsked: "served",
  policy: null,
  policyVersion: null,
  provider: null,
  modelAnswered: "served-v4",
  request: { model: "x", messages: [], temperature: 0.1 },
  response: { role: "assistant", content: "hi" },
  promptTokens: 2,
  completionTokens: 1,
  promptTokenIds: packIds([1, 2]),
  prefixCallId: null,
  prefixTokens: 0,
  responseTokenIds: packIds([3]),
  behaviourLogprobs: packFloats([-0.5]),
  responseTokens: ["hi"],
  temperature: 1,
  finishReason: "stop",
  httpStatus: 200,
  error: null,
  trainable: true,
  firstByteMs: 1,
  latencyMs: 7,
  upstreamAttempts: 3,
  createdAt: 5000,
};
const kept = {
  server: { model: "served", endpoint: "http://e/v1", version: 4 },
  set: { model: "served", temperature: 1 },
};

describe("modelRequest", () => {
  it("is a chat call as it was sent on and answered", () => {
    expect(modelRequest(call, kept)).toEqual({
      model: "served",
      model_version: 4,
      request: { model: "served", messages: [], temperature: 1 },
      response: {
        id: "ca_1",
        created: 5,
        model: "served-v4",
        object: "chat.completion",
        choices: [
          {
            index: 0,
            message: { role: "assistant", content: "hi" },
            finish_reason: "stop",
            token_ids: [3],
            logprobs: { content: [{ token: "hi", logprob: -0.5 }] },
          },
        ],
        usage: { prompt_tokens: 2, completion_tokens: 1, total_tokens: 3 },
        prompt_token_ids: [1, 2],
      },
      server: kept.server,
      latency_ms: 7,
      http_status: 200,
      status: "ok",
      retry_count: 2,
      routed_experts: null,
      usage: { prompt_tokens: 2, completion_tokens: 1, total_tokens: 3 },
      finish_reason: "stop",
    });
  });

  it("is a completion in that dialect's form", () => {
    expect(modelRequest({ ...call, dialect: "completions" }, kept)["response"]).toMatchObject({
      object: "text_completion",
      choices: [
        {
          text: "hi",
          prompt_token_ids: [1, 2],
          token_ids: [3],
          logprobs: { token_logprobs: [-0.5], tokens: ["hi"] },
        },
      ],
    });
  });

  it("has no ids where the endpoint gave none", () => {
    const bare = {
      ...call,
      promptTokenIds: null,
      responseTokenIds: null,
      behaviourLogprobs: null,
      responseTokens: null,
    };
    expect(modelRequest(bare, kept)["response"]).toMatchObject({
      prompt_token_ids: [],
      choices: [{ token_ids: [], logprobs: null }],
    });
  });

  it("is an error with the endpoint's own answer", () => {
    const failed = { ...call, response: null, httpStatus: 400, error: "the endpoint answered 400" };
    expect(modelRequest(failed, { ...kept, response: { error: { message: "too long" } } })).toMatchObject({
      status: "error",
      http_status: 400,
      response: { error: { message: "too long" } },
    });
  });
});
