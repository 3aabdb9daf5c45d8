import { createServer, type Server } from "node:net";
import { afterEach, expect, it } from "vitest";
import { connectStore } from "#shared/store/connect.ts";
import { readTenant } from "#shared/store/tenants.ts";

let server: Server | undefined;
afterEach(() => server?.close());

it("gives up on a server that takes connections and never answers", async () => {
  const silent = createServer();
  server = silent;
  const port = await new Promise<number>((resolve) => {
    silent.listen({ host: "127.0.0.1", port: 0 }, () => {
      const address = silent.address();
      resolve(typeof address === "object" && address !== null ? address.port : 0);
    });
  });
  const db = connectStore({ url: `http://127.0.0.1:${port}`, token: "t", timeoutMs: 100 });
  const startedAt = performance.now();
  await expect(readTenant(db, "default")).rejects.toThrow(/Failed query/);
  expect(performance.now() - startedAt).toBeLessThan(5000);
});

it.each<[string, () => Promise<Response>, object]>([
  ["nothing listens", () => Promise.reject(new TypeError("fetch failed")), { code: "ERR_STORE" }],
  ["a server that is out of order", () => Promise.resolve(new Response("", { status: 503 })), { code: "ERR_STORE" }],
  ["too many requests", () => Promise.resolve(new Response("", { status: 429 })), { code: "ERR_STORE" }],
  ["a token that it does not take", () => Promise.resolve(new Response("", { status: 401 })), { code: "SERVER_ERROR" }],
])("tells the store's being away from what is wrong with a request: %s", async (_what, send, cause) => {
  const db = connectStore({ url: "http://127.0.0.1:1", token: "t", fetch: send });
  await expect(readTenant(db, "default")).rejects.toMatchObject({ cause });
});
