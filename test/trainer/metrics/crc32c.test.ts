import { expect, it } from "vitest";
import { crc32c } from "../../../trainer/metrics/crc32c.ts";

it.each([
  ["no bytes", new Uint8Array(), 0],
  // RFC 3720, appendix B.4, read as little-endian numbers.
  ["32 bytes of 0", new Uint8Array(32), 0x8a9136aa],
  ["32 bytes of 255", new Uint8Array(32).fill(255), 0x62a8ab43],
  ["32 bytes that rise", Uint8Array.from({ length: 32 }, (_, at) => at), 0x46dd794e],
  ["32 bytes that fall", Uint8Array.from({ length: 32 }, (_, at) => 31 - at), 0x113fdb5c],
  ["the usual check", new TextEncoder().encode("123456789"), 0xe3069283],
])("is known for %s", (_, bytes, expected) => {
  expect(crc32c(bytes)).toBe(expected);
});
