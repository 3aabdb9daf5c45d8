import fc from "fast-check";
import { expect, it } from "vitest";
import { affinity, hashOf } from "../../../edge/proxy/rendezvous.ts";

const SERVERS = ["http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000", "http://10.0.0.4:8000"];

function choice(key: string, servers: readonly string[]): string {
  const wanted = hashOf(key);
  return servers.toSorted((a, b) => affinity(wanted, hashOf(b)) - affinity(wanted, hashOf(a)))[0] ?? "";
}

it("gives servers equal shares, also of ids that differ in little", () => {
  const keys = Array.from({ length: 4000 }, (_, at) => `ro_018f${at.toString(16).padStart(8, "0")}`);
  const shares = SERVERS.map((server) => keys.filter((key) => choice(key, SERVERS) === server).length);
  // A fair share is 1000, and a fair hash's spread about 27.
  for (const share of shares) expect(Math.abs(share - 1000)).toBeLessThan(110);
});

it("moves those keys alone whose server has gone, and moves them back", () => {
  fc.assert(
    fc.property(fc.string({ minLength: 1 }), fc.constantFrom(...SERVERS), (key, gone) => {
      const before = choice(key, SERVERS);
      const after = choice(
        key,
        SERVERS.filter((server) => server !== gone),
      );
      expect(after === before).toBe(before !== gone);
    }),
  );
});
