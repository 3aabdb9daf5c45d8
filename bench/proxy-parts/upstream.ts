import { createServer, type AddressInfo } from "node:net";
import { streamEvents, wholeAnswer, type MockReply } from "../../test/support/mock-inference.ts";

/**
 * The mock endpoint of bench/proxy.ts, as its own process: every answer is 64 tokens with ids and logprobs, put into bytes
 * once, so that it costs as little as it can; a stream is one HTTP chunk a token. It reads just enough HTTP/1.1 for requests
 * with a declared length. Arguments: other numbers of tokens for the answer and for the prompt of a whole answer. Prints its
 * URL.
 */

const [tokens = "64", promptTokens] = process.argv.slice(2);
const reply: MockReply = { tokens: Array.from({ length: Number(tokens) }, (_, at) => ` word${at}`) };

interface Answers {
  readonly whole: Buffer;
  readonly stream: Buffer;
}

const answers = new Map<string, Answers>();

function answersOf(model: string): Answers {
  let known = answers.get(model);
  if (known === undefined) {
    const whole = Buffer.from(withPrompt(wholeAnswer({ model }, reply)));
    const chunks = streamEvents({ model }, reply).map(
      (event) => `${Buffer.byteLength(event).toString(16)}\r\n${event}\r\n`,
    );
    known = {
      whole: Buffer.concat([
        Buffer.from(`HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ${whole.length}\r\n\r\n`),
        whole,
      ]),
      stream: Buffer.from(
        `HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n${chunks.join("")}0\r\n\r\n`,
      ),
    };
    answers.set(model, known);
  }
  return known;
}

function withPrompt(answer: string): string {
  if (promptTokens === undefined) return answer;
  const length = Number(promptTokens);
  return answer
    .replace(
      /"prompt_token_ids":\[[^\]]*\]/,
      `"prompt_token_ids":[${Array.from({ length }, (_, at) => at * 7).join(",")}]`,
    )
    .replace(/"prompt_tokens":\d+/, `"prompt_tokens":${length}`);
}

function answerTo(body: string): Buffer {
  const { whole, stream } = answersOf(/"model":"([^"]+)"/.exec(body)?.[1] ?? "mock");
  return body.includes('"stream":true') ? stream : whole;
}

const server = createServer({ noDelay: true }, (socket) => {
  let waiting = Buffer.alloc(0);
  socket.on("error", () => undefined);
  socket.on("data", (bytes) => {
    waiting = waiting.length === 0 ? bytes : Buffer.concat([waiting, bytes]);
    for (;;) {
      const end = waiting.indexOf("\r\n\r\n");
      if (end === -1) return;
      const length = bodyLength(waiting.toString("latin1", 0, end));
      if (waiting.length < end + 4 + length) return;
      socket.write(answerTo(waiting.toString("latin1", end + 4, end + 4 + length)));
      waiting = waiting.subarray(end + 4 + length);
    }
  });
});

function bodyLength(head: string): number {
  const declared = /\r\ncontent-length: *(\d+)/i.exec(head)?.[1];
  if (declared === undefined && !head.startsWith("GET ")) {
    throw new Error("the mock endpoint wants requests with a content-length");
  }
  return Number(declared ?? 0);
}

server.listen(0, "127.0.0.1", () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`);
});
