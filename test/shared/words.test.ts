import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { parseServedName, parseVersionName, qualified, servedName, versionName } from "#shared/words.ts";

const policies = fc.stringMatching(/^[a-z0-9][a-z0-9._-]{0,62}$/);
const versions = fc.nat({ max: 999_999_999 });
/** Any text: what a tenant may be called is nowhere restricted. */
const tenants = fc.oneof(
  fc.string({ minLength: 1, unit: "binary" }),
  fc.stringMatching(/^[A-Za-z0-9~@._-]{1,20}$/),
  fc.constantFrom("default", "acme", "~", "acme~flight", "a~0041", "\ud800", "\ud801"),
);

describe("servedName", () => {
  it.each([
    ["default", "flight", 3, "flight@3"],
    ["acme", "flight", 3, "acme~flight@3"],
    ["acme.eu", "a.b", 0, "acme.eu~a.b@0"],
    // Beside policy a.b of tenant acme.eu: a dot may be in either.
    ["acme", "eu.a.b", 0, "acme~eu.a.b@0"],
    ["Acme Inc", "flight", 3, "~0041cme~0020~0049nc~flight@3"],
    ["..", "flight", 3, "~002e.~flight@3"],
    ["a~b", "flight", 3, "a~007eb~flight@3"],
  ])("of tenant %s, policy %s, version %d is %s", (tenantId, policy, version, name) => {
    expect(servedName(tenantId, policy, version)).toBe(name);
    expect(parseServedName(name)).toEqual({ tenantId, policy, version });
  });

  it("tells whose version it is, whatever tenants and policies are called", () => {
    fc.assert(
      fc.property(tenants, policies, versions, (tenantId, policy, version) => {
        const name = servedName(tenantId, policy, version);
        expect(parseServedName(name)).toEqual({ tenantId, policy, version });
        // Nothing that a path, a URL, a label or a list with commas would read otherwise.
        expect(name).toMatch(/^[a-z0-9~][a-z0-9._~-]*@\d+$/);
      }),
    );
  });

  it("is no name that an agent may ask for or a pin may be, but for the default tenant", () => {
    fc.assert(
      fc.property(tenants, policies, versions, (tenantId, policy, version) => {
        const own = tenantId === "default" ? { policy, version } : undefined;
        expect(parseVersionName(servedName(tenantId, policy, version))).toEqual(own);
      }),
    );
  });

  it.each([
    "",
    "flight",
    "flight@",
    "flight@03",
    "flight@1000000000",
    "~flight@3",
    "default~flight@3",
    "acme~@3",
    "acme~Flight@3",
    "acme~~flight@3",
    "Acme~flight@3",
    "a/b~flight@3",
    // A lower-case letter has no need of it.
    "~0061cme~flight@3",
    "a~00~flight@3",
    "../flight@3",
  ])("is not %j", (name) => {
    expect(parseServedName(name)).toBeUndefined();
  });

  it("keeps apart what the file system may not: names that differ in case alone", () => {
    const folders = ["Acme", "acme", "ACME"].map((tenantId) => qualified(tenantId, "flight").toLowerCase());
    expect(new Set(folders).size).toBe(3);
  });
});

it("a version's name and its parts are one thing", () => {
  fc.assert(
    fc.property(policies, versions, (policy, version) => {
      expect(parseVersionName(versionName(policy, version))).toEqual({ policy, version });
    }),
  );
});
