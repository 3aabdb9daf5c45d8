import { describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { itemId, readItemId, responseId, type ItemKind } from "../../../../edge/proxy/responses/ids.ts";

const KEY = "0199aaaabbbbccccddddeeeeffff0001";

describe("ids of a response", () => {
  it("are the call's id with OpenAI's prefixes", () => {
    expect(responseId(`ca_${KEY}`)).toBe(`resp_${KEY}`);
    expect(itemId(`ca_${KEY}`, "msg", 0)).toBe(`msg_${KEY}`);
    expect(itemId(`ca_${KEY}`, "fc", 2)).toBe(`fc_${KEY}_2`);
  });

  it.each<ItemKind>(["rs", "msg", "fc"])("lead from an item of kind %s back to its response", (kind) => {
    const callId = newId("call");
    for (const n of [0, 1, 17]) {
      expect(readItemId(itemId(callId, kind, n))).toEqual({ kind, responseId: responseId(callId), n });
    }
  });

  it.each([undefined, 3, "", "msg_1", `msg_${KEY}00`, `ca_${KEY}`, `msg_${KEY}_`, `msg_${KEY.toUpperCase()}`])(
    "are told from others, such as %j",
    (id) => {
      expect(readItemId(id)).toBeUndefined();
    },
  );
});
