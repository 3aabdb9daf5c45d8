import { describe, expect, it } from "vitest";
import { burstReader } from "../../../edge/proxy/burst-reader.ts";

/** Of workerd; the tests' project has Node's types. */
declare const IdentityTransformStream: new () => {
  readonly readable: ReadableStream<Uint8Array>;
  readonly writable: WritableStream<Uint8Array>;
};

const text = (bytes: Uint8Array | undefined): string | undefined =>
  bytes === undefined ? undefined : new TextDecoder().decode(bytes);

/** A stream that is written piece by piece, and a reader of it with a clock of its own. */
function stream() {
  const { readable, writable } = new IdentityTransformStream();
  const client = writable.getWriter();
  const clock = { now: 0 };
  return {
    clock,
    write: (piece: string) => client.write(new TextEncoder().encode(piece)),
    close: () => client.close(),
    reader: burstReader(readable, () => clock.now),
  };
}

describe("burstReader, in workerd", () => {
  it("gives each piece of a slow stream as it comes", async () => {
    const { clock, write, close, reader } = stream();
    for (let at = 0; at < 20; at++) {
      clock.now += 20;
      const written = write(`token${at % 10}`);
      expect(text(await reader.read())).toBe(`token${at % 10}`);
      await written;
    }
    const closed = close();
    expect(await reader.read()).toBeUndefined();
    await closed;
  });

  it("gives the first pieces of a fast stream as they come, the rest together, and loses nothing at its end", async () => {
    const { write, close, reader } = stream();
    const tokens = Array.from({ length: 50 }, (_, at) => `<${at}>`);
    const written = (async () => {
      for (const token of tokens) await write(token);
      await close();
    })();
    const pieces: string[] = [];
    for (let piece = text(await reader.read()); piece !== undefined; piece = text(await reader.read())) {
      pieces.push(piece);
    }
    await written;
    expect(pieces.slice(0, 4)).toEqual(["<0>", "<1>", "<2>", "<3>"]);
    expect(pieces.join("")).toBe(tokens.join(""));
    expect(pieces.length).toBeLessThan(10);
  });

  it("goes back to single pieces when the stream slows down", async () => {
    const { clock, write, reader } = stream();
    for (let at = 0; at < 4; at++) {
      const written = write("12345678");
      await reader.read();
      await written;
    }
    // At 8 bytes a millisecond it waits for 320.
    const large = "x".repeat(160);
    const half = write(large);
    clock.now += 1000;
    const rest = write(large);
    expect(text(await reader.read())).toBe(large + large);
    await Promise.all([half, rest]);
    clock.now += 1000;
    const single = write("1");
    expect(text(await reader.read())).toBe("1");
    await single;
  });
});
