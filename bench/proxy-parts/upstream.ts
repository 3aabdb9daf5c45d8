import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { streamEvents, wholeAnswer, type MockReply } from "../../test/support/mock-inference.ts";

/**
 * The mock endpoint of bench/proxy.ts, as its own process: every answer is 64 tokens with ids and logprobs, serialised once, so
 * that it costs as little as it can; a stream is one write a token. Prints its URL.
 */

const reply: MockReply = { tokens: Array.from({ length: 64 }, (_, at) => ` word${at}`) };
const answers = new Map<string, { readonly whole: string; readonly events: readonly string[] }>();

function answersOf(model: string): { readonly whole: string; readonly events: readonly string[] } {
  let known = answers.get(model);
  if (known === undefined) {
    known = { whole: wholeAnswer({ model }, reply), events: streamEvents({ model }, reply) };
    answers.set(model, known);
  }
  return known;
}

const server = createServer((request, response) => {
  let body = "";
  request.setEncoding("utf8");
  request.on("data", (piece: string) => (body += piece));
  request.on("end", () => {
    const model = /"model":"([^"]+)"/.exec(body)?.[1] ?? "mock";
    const { whole, events } = answersOf(model);
    if (body.includes('"stream":true')) {
      response.writeHead(200, { "content-type": "text/event-stream" });
      for (const event of events) response.write(event);
      response.end();
    } else {
      response
        .writeHead(200, { "content-type": "application/json", "content-length": Buffer.byteLength(whole) })
        .end(whole);
    }
  });
});
server.keepAliveTimeout = 60_000;
server.listen(0, "127.0.0.1", () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`);
});
