import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Redaction } from "#shared/agent-settings.ts";
import type { CallRecord } from "#shared/store/calls.ts";
import { checkRedaction, redact, redactCall } from "../../../edge/record/redact.ts";

const EMAIL: Redaction = { pattern: "[a-z.]+@[a-z]+\\.com", replacement: "[email]" };
const path = (text: string): Redaction => ({ path: text, replacement: "[x]" });

function json(value: unknown, ...rules: readonly Redaction[]): unknown {
  return JSON.parse(redact(JSON.stringify(value), rules).text);
}

describe("redact", () => {
  it("replaces every match in every string, and leaves keys", () => {
    expect(
      json({ messages: [{ content: "I am a.b@c.com, not d@e.com" }], "a@b.com": [1, null, true, "f@g.com"] }, EMAIL),
    ).toEqual({ messages: [{ content: "I am [email], not [email]" }], "a@b.com": [1, null, true, "[email]"] });
  });

  it("finds what JSON would have escaped, and what is a number", () => {
    expect(json({ a: "line\nsecret", b: 123_456_789 }, { pattern: "\\nsecret|\\d{9}", replacement: '"' })).toEqual({
      a: 'line"',
      b: '"',
    });
  });

  it("looks at a text that is not JSON as it is", () => {
    expect(redact("mail a@b.com", [EMAIL, path("$.a")])).toEqual({ text: "mail [email]", changed: true });
    expect(redact("{a@b.com", [EMAIL])).toEqual({ text: "{[email]", changed: true });
  });

  it("hides what a path leads to, with names, positions and stars", () => {
    const value = { user: { email: "x", age: 7 }, list: [{ a: 1, b: { c: 2 } }, { a: 3 }], "odd key": 4 };
    expect(json(value, path("$.user.email"))).toEqual({ ...value, user: { email: "[x]", age: 7 } });
    expect(json(value, path("$.list.*.a"))).toEqual({ ...value, list: [{ a: "[x]", b: { c: 2 } }, { a: "[x]" }] });
    expect(json(value, path("$.list[0].b"))).toEqual({ ...value, list: [{ a: 1, b: "[x]" }, { a: 3 }] });
    expect(json(value, path("$.list[*].b.c"))).toEqual({ ...value, list: [{ a: 1, b: { c: "[x]" } }, { a: 3 }] });
    expect(json(value, path('$.["odd key"]'), path("$.*.email"))).toMatchObject({ user: { email: "[x]" } });
    expect(json(value, path("$.nothing.here"))).toEqual(value);
  });

  it("says that nothing was hidden, and leaves the text as it was written", () => {
    const text = '{ "b": 1.0, "a": "plain" }';
    expect(redact(text, [EMAIL, path("$.c"), path("$.b.c")])).toEqual({ text, changed: false });
    expect(redact(text, [])).toEqual({ text, changed: false });
    // Already hidden.
    expect(redact('{"c":"[x]"}', [path("$.c")]).changed).toBe(false);
  });

  it("leaves no match in any string of any JSON, and nothing else changed", () => {
    const rule: Redaction = { pattern: "s3cret", replacement: "-" };
    fc.assert(
      fc.property(fc.jsonValue(), fc.constantFrom("s3cret", "plain"), (value, word) => {
        const text = JSON.stringify({ value, word });
        const hidden = redact(text, [rule]);
        expect(JSON.parse(hidden.text)).toEqual(
          JSON.parse(text, (_key, each: unknown) => (typeof each === "string" ? each.replaceAll("s3cret", "-") : each)),
        );
        expect(hidden.changed).toBe(text.includes("s3cret"));
      }),
    );
  });

  it("refuses JSON that is nested too deeply, and rules that cannot be used", () => {
    const deep = `${"[".repeat(100_000)}${"]".repeat(100_000)}`;
    expect(() => redact(deep, [EMAIL])).toThrow(/nested too deeply/);
    expect(() => checkRedaction({ pattern: "(?=x)", replacement: "" })).toThrow(/look-around/);
    for (const bad of ["$.", "$.a..b", "$.a[x]", "$.a[", "$.**"])
      expect(() => checkRedaction(path(bad))).toThrow(/path/);
    expect(() => checkRedaction(path('$.a.*["b.c"][3]'))).not.toThrow();
  });
});

describe("redactCall", () => {
  const record = {
    id: "ca_1",
    request: '{"messages":[{"role":"user","content":"a@b.com"}]}',
    response: '{"role":"assistant","content":"hello"}',
    promptTokenIds: new Uint8Array([1]),
    responseTokenIds: new Uint8Array([2]),
    behaviourLogprobs: new Uint8Array([3]),
    responseTokens: ["hello"],
    prefixCallId: "ca_0",
    prefixTokens: 4,
    trainable: true,
    error: null,
    promptTokens: 5,
  } as unknown as CallRecord;

  it("keeps no ids, tokens or prefix of a call in which anything was hidden, and says why it cannot train", () => {
    expect(redactCall(record, [EMAIL])).toMatchObject({
      id: "ca_1",
      request: '{"messages":[{"role":"user","content":"[email]"}]}',
      response: record.response,
      promptTokenIds: null,
      responseTokenIds: null,
      behaviourLogprobs: null,
      responseTokens: null,
      prefixCallId: null,
      prefixTokens: 0,
      trainable: false,
      error: "redacted",
      promptTokens: 5,
    });
    const answered = redactCall({ ...record, request: "{}", response: '{"content":"a@b.com"}', error: "cut" }, [EMAIL]);
    expect(answered).toMatchObject({ response: '{"content":"[email]"}', trainable: false, error: "cut" });
  });

  it("leaves a call in which nothing was hidden as it is", () => {
    expect(redactCall(record, [{ pattern: "nobody", replacement: "" }])).toEqual(record);
    expect(redactCall(record, [])).toBe(record);
    expect(redactCall({ ...record, request: "{}", response: null }, [EMAIL])).toMatchObject({ trainable: true });
    const refused = { ...record, request: "{}", error: "refused: a@b.com" };
    expect(redactCall(refused, [EMAIL])).toMatchObject({ error: "refused: [email]" });
  });
});
