import { describe, expect, it } from "vitest";
import { FulgurError, type ErrorCode } from "#shared/errors.ts";
import { errorResponse, RetryLaterError, statusOf } from "../../edge/http-errors.ts";

describe("errorResponse", () => {
  it.each<[ErrorCode, number, string]>([
    ["ERR_AUTH", 401, "authentication_error"],
    ["ERR_FORBIDDEN", 403, "permission_error"],
    ["ERR_INVALID_REQUEST", 400, "invalid_request_error"],
    ["ERR_NOT_FOUND", 404, "invalid_request_error"],
    ["ERR_TOO_LARGE", 413, "invalid_request_error"],
    ["ERR_OVERLOADED", 429, "rate_limit_error"],
    ["ERR_UPSTREAM", 502, "server_error"],
    ["ERR_STORE", 503, "server_error"],
  ])("answers %s with %i in OpenAI's form", async (code, status, type) => {
    const response = errorResponse(new FulgurError(code, "what to do"));
    expect(response.status).toBe(status);
    expect(await response.json()).toEqual({ error: { message: "what to do", type, param: null, code } });
  });

  it("calls an unknown policy what SDKs call it", async () => {
    expect(await errorResponse(new FulgurError("ERR_UNKNOWN_POLICY", "none")).json()).toMatchObject({
      error: { code: "model_not_found", param: "model" },
    });
  });

  it("always says after how many whole seconds to repeat a 429 or 503", () => {
    const retryAfter = (thrown: unknown): string | null => errorResponse(thrown).headers.get("retry-after");
    expect(retryAfter(new FulgurError("ERR_OVERLOADED", "full"))).toBe("1");
    expect(retryAfter(new FulgurError("ERR_STORE", "away"))).toBe("1");
    expect(retryAfter(new RetryLaterError("ERR_OVERLOADED", "full", { retryAfterSeconds: 2.2 }))).toBe("3");
    expect(retryAfter(new FulgurError("ERR_AUTH", "no"))).toBeNull();
  });

  it("knows a FulgurError that crossed RPC by its code", () => {
    expect(statusOf(Object.assign(new Error("away"), { code: "ERR_STORE" }))).toBe(503);
  });

  it("takes a read that the store did not answer for the store's being away, and not for a failure of its own", async () => {
    const cause = new FulgurError("ERR_STORE", "the store did not answer within 5000 ms: ECONNREFUSED 10.1.2.3");
    const response = errorResponse(new Error("Failed query: select secret", { cause }));
    expect(response.status).toBe(503);
    expect(response.headers.get("retry-after")).toBe("1");
    expect(await response.json()).toMatchObject({ error: { message: "the store is away; try again in a second" } });
    expect(statusOf(new Error("Failed query: select secret", { cause: new Error("no such table") }))).toBe(500);
  });

  it("tells nothing of what it does not know", async () => {
    const response = errorResponse(new TypeError("secret detail"));
    expect(response.status).toBe(500);
    expect(await response.text()).not.toContain("secret");
  });
});
