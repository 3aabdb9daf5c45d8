import { describe, expect, it } from "vitest";
import { readText } from "../../../edge/proxy/body.ts";
import { eventReader } from "../../../edge/proxy/sse.ts";

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

describe("eventReader, in workerd", () => {
  it("finds events across pieces that split lines and characters, with comments and CRLF between", () => {
    const whole = bytes('data: {"a":"ü"}\r\n\r\n: comment\n\ndata: [DONE]\n\n');
    for (let cut = 1; cut < whole.length; cut++) {
      const read = eventReader();
      const events = [...read(whole.slice(0, cut)), ...read(whole.slice(cut))];
      expect(events).toEqual(['{"a":"ü"}', "[DONE]"]);
    }
  });
});

describe("readText, in workerd", () => {
  const post = (body: string | ReadableStream): Request => new Request("http://edge/", { method: "POST", body });

  it("reads a body of the limit and refuses one byte more", async () => {
    expect(await readText(post("x".repeat(100)), { maxBytes: 100 })).toHaveLength(100);
    await expect(readText(post("x".repeat(101)), { maxBytes: 100 })).rejects.toMatchObject({ code: "ERR_TOO_LARGE" });
  });

  it("stops reading a body of unknown length at the limit", async () => {
    let pulled = 0;
    const endless = new ReadableStream({
      pull(controller) {
        pulled++;
        controller.enqueue(bytes("x".repeat(60)));
      },
    });
    await expect(readText(post(endless), { maxBytes: 100 })).rejects.toMatchObject({ code: "ERR_TOO_LARGE" });
    expect(pulled).toBeLessThan(10);
  });
});
