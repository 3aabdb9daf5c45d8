import fc from "fast-check";
import { expect, test } from "vitest";
import { decodeAnswer, encodeFrame, FrameReader } from "../../../../trainer/engine/torch/wire.ts";

const frameOf = (message: Record<string, unknown>, arrays: Record<string, Float32Array>): Buffer =>
  Buffer.concat(
    encodeFrame({ message, tensors: new Map(Object.entries(arrays).map(([name, data]) => [name, { data }])) }),
  );

test("a frame is a length and a safetensors file", () => {
  const frame = Buffer.concat(
    encodeFrame({
      message: { command: "score" },
      tensors: new Map([
        ["tokens", { data: Int32Array.of(7, -1) }],
        ["pulls", { data: Float32Array.of(0.5, 1, 2, 4), shape: [2, 2] }],
      ]),
    }),
  );
  expect(Number(frame.readBigUInt64LE())).toBe(frame.length - 8);
  const length = Number(frame.readBigUInt64LE(8));
  expect(length % 8).toBe(0);
  expect(JSON.parse(frame.subarray(16, 16 + length).toString())).toEqual({
    __metadata__: { message: '{"command":"score"}' },
    tokens: { dtype: "I32", shape: [2], data_offsets: [0, 8] },
    pulls: { dtype: "F32", shape: [2, 2], data_offsets: [8, 24] },
  });
  const data = frame.subarray(16 + length);
  expect([data.readInt32LE(0), data.readInt32LE(4), data.readFloatLE(8), data.readFloatLE(20)]).toEqual([
    7, -1, 0.5, 4,
  ]);
});

test("frames come out as they went in, however the stream is cut", () => {
  const floats = fc.float32Array({ maxLength: 40, noNaN: true });
  const frames = fc.array(
    fc.record({
      message: fc.record({ text: fc.string() }),
      arrays: fc.dictionary(fc.stringMatching(/^[a-z]{1,5}$/), floats),
    }),
    { minLength: 1, maxLength: 4 },
  );
  fc.assert(
    fc.property(frames, fc.array(fc.integer({ min: 1, max: 60 }), { minLength: 1 }), (sent, sizes) => {
      const stream = Buffer.concat(sent.map(({ message, arrays }) => frameOf(message, arrays)));
      const reader = new FrameReader();
      const bodies: Buffer[] = [];
      for (let at = 0, i = 0; at < stream.length; i += 1) {
        const end = at + (sizes[i % sizes.length] ?? 1);
        bodies.push(...reader.push(stream.subarray(at, end)));
        at = end;
      }
      const answers = bodies.map(decodeAnswer);
      expect(answers.map(({ message }) => message)).toEqual(sent.map(({ message }) => message));
      expect(
        answers.map(({ tensors }) => Object.fromEntries([...tensors].map(([name, { data }]) => [name, data]))),
      ).toEqual(sent.map(({ arrays }) => ({ ...arrays })));
    }),
  );
});

test("what is no answer is refused", () => {
  const body = Buffer.alloc(16);
  body.writeBigUInt64LE(8n);
  expect(() => decodeAnswer(body)).toThrow("no readable header");
});
