import { assert, property, uint8Array } from "fast-check";
import { expect, it } from "vitest";
import { fromBase64, toBase64 } from "#shared/store/base64.ts";

it("is the base64 that everyone writes, for any bytes", () => {
  assert(
    property(uint8Array({ maxLength: 500 }), (bytes) => {
      expect(toBase64(bytes)).toBe(Buffer.from(bytes).toString("base64"));
      expect(fromBase64(toBase64(bytes))).toEqual(Uint8Array.from(bytes));
    }),
  );
});

it("takes bytes of any number, and a view into a larger buffer", () => {
  const large = Uint8Array.from({ length: 100_001 }, (_, at) => at % 251);
  expect(fromBase64(toBase64(large))).toEqual(large);
  expect(fromBase64(toBase64(large.subarray(7, 10)))).toEqual(Uint8Array.of(7, 8, 9));
});
