import { expect, it } from "vitest";
import { urlListSchema, urlListTextSchema } from "#shared/url-list.ts";

it("is one URL or several, without trailing slashes, in their order", () => {
  expect(urlListSchema.parse("http://a:1/")).toEqual(["http://a:1"]);
  expect(urlListSchema.parse(" http://b:2, http://a:1/v/ ,")).toEqual(["http://b:2", "http://a:1/v"]);
  expect(urlListTextSchema.parse("http://b:2,http://a:1/")).toBe("http://b:2,http://a:1/");
});

it.each(["", ",", "nowhere", "http://a:1,b", "http://a:1,http://a:1/"])("is not %j", (text) => {
  expect(urlListSchema.safeParse(text).success).toBe(false);
  expect(urlListTextSchema.safeParse(text).error?.issues[0]?.message).toMatch(/wanted a URL/);
});
