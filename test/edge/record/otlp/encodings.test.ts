import { fromBase64 } from "#shared/store/base64.ts";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { FulgurError } from "#shared/errors.ts";
import * as json from "../../../../edge/record/otlp/json.ts";
import * as protobuf from "../../../../edge/record/otlp/protobuf.ts";
import recorded from "../../../wire/otlp-python.json" with { type: "json" };

const fromProtobuf = protobuf.readTraces(fromBase64(recorded.protobuf));
const fromJson = json.readTraces(JSON.stringify(recorded.json));

describe("what OpenTelemetry's Python SDK sends", () => {
  it("is the same in protobuf and in JSON", () => {
    expect(fromProtobuf).toHaveLength(3);
    expect(fromJson).toEqual(fromProtobuf);
  });

  it("keeps attributes of every type, the resource's, times, parents, events and the status", () => {
    const [search, memory, root] = fromProtobuf;
    expect(root?.attributes).toMatchObject({ n: 3, f: 0.5, ok: true, tags: ["a", "b"] });
    expect(root?.resource["fulgur.rollout_id"]).toBe("ro_1");
    expect(root?.parentId).toBeNull();
    expect(search?.parentId).toBe(root?.spanId);
    expect(search?.traceId).toMatch(/^[0-9a-f]{32}$/);
    expect(search?.startedAt).toBeGreaterThan(1.7e12);
    expect(search?.events[0]).toMatchObject({
      name: "gen_ai.evaluation.result",
      attributes: { "gen_ai.evaluation.score.value": 0.75 },
    });
    expect(search?.failed).toBe(false);
    expect(memory?.failed).toBe(true);
    expect(memory?.statusMessage).toContain("no such key");
  });
});

describe("odd input", () => {
  it("ends in an error that can be answered, whatever the bytes", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 400 }), (bytes) => {
        try {
          expect(Array.isArray(protobuf.readTraces(bytes))).toBe(true);
        } catch (thrown) {
          expect(thrown).toBeInstanceOf(FulgurError);
        }
      }),
      { numRuns: 500 },
    );
  });

  it("takes a cut or flipped request as an error or as spans, never as a crash", () => {
    const whole = fromBase64(recorded.protobuf);
    fc.assert(
      fc.property(fc.nat(whole.length - 1), fc.nat(255), (at, byte) => {
        const flipped = whole.slice();
        flipped[at] = byte;
        for (const bytes of [whole.subarray(0, at), flipped]) {
          try {
            for (const span of protobuf.readTraces(bytes)) expect(typeof span.name).toBe("string");
          } catch (thrown) {
            expect(thrown).toBeInstanceOf(FulgurError);
          }
        }
      }),
      { numRuns: 500 },
    );
  });

  it("reads any JSON without crashing", () => {
    fc.assert(
      fc.property(fc.json({ maxDepth: 8 }), (text) => {
        try {
          expect(Array.isArray(json.readTraces(`{"resourceSpans":[{"scopeSpans":[{"spans":[${text}]}]}]}`))).toBe(true);
        } catch (thrown) {
          expect(thrown).toBeInstanceOf(FulgurError);
        }
      }),
    );
  });

  it("does not let an attribute named __proto__ change anything", () => {
    const [span] = json.readTraces(
      JSON.stringify({
        resourceSpans: [
          { scopeSpans: [{ spans: [{ attributes: [{ key: "__proto__", value: { kvlistValue: { values: [] } } }] }] }] },
        ],
      }),
    );
    expect(Object.keys(span?.attributes ?? {})).toEqual(["__proto__"]);
    expect(Object.getPrototypeOf({})).toBe(Object.prototype);
  });

  it("cuts what is nested too deep", () => {
    let value: object = { stringValue: "deep" };
    for (let depth = 0; depth < 500; depth++) value = { arrayValue: { values: [value] } };
    const [span] = json.readTraces(
      JSON.stringify({ resourceSpans: [{ scopeSpans: [{ spans: [{ attributes: [{ key: "a", value }] }] }] }] }),
    );
    expect(JSON.stringify(span?.attributes["a"])).toBe(`${"[".repeat(17)}null${"]".repeat(17)}`);
  });
});

describe("the answer in protobuf", () => {
  it("is empty where everything was taken and names what was not", () => {
    expect(protobuf.writePartialSuccess(0, "")).toHaveLength(0);
    // ExportTraceServiceResponse { partial_success { rejected_spans: 2, error_message: "no" } }
    expect([...protobuf.writePartialSuccess(2, "no")]).toEqual([0x0a, 6, 0x08, 2, 0x12, 2, 0x6e, 0x6f]);
  });
});
