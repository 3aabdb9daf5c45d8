import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import { connect } from "node:net";
import { expect, test } from "vitest";
import { Connections } from "../../../trainer/inference/connections.ts";

test("the end waits for answers, and not for connections that carry none or never carried one", async () => {
  const held = Promise.withResolvers<ServerResponse>();
  const server = createServer((request, response) => {
    if (request.url === "/held") held.resolve(response);
    else response.end("done");
  });
  const connections = new Connections(server);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  const port = typeof address === "object" && address !== null ? address.port : 0;
  const unused = connect(port, "127.0.0.1");
  const unusedClosed = once(unused, "close");
  await once(unused, "connect");
  await (await fetch(`http://127.0.0.1:${port}/`)).text();
  const answer = fetch(`http://127.0.0.1:${port}/held`);
  const response = await held.promise;

  let isClosed = false;
  const closed = connections.close(20_000).then(() => {
    isClosed = true;
  });
  server.close();
  await unusedClosed;
  expect(isClosed).toBe(false);
  response.end("whole");
  expect(await (await answer).text()).toBe("whole");
  await closed;
});

test("after the grace what still runs is cut off", async () => {
  const server = createServer(() => {});
  const connections = new Connections(server);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  const port = typeof address === "object" && address !== null ? address.port : 0;
  const cutOff = once(server, "request").then(() => connections.close(1));
  await expect(fetch(`http://127.0.0.1:${port}/`)).rejects.toThrow(/fetch failed/);
  await cutOff;
  server.close();
});
