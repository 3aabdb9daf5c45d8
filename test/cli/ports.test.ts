import { once } from "node:events";
import { createServer, type AddressInfo } from "node:net";
import { expect, test } from "vitest";
import { portsFrom, requireFreePorts } from "../../cli/ports.ts";

test("the three ports are neighbours", () => {
  expect(portsFrom(8787)).toEqual({ edge: 8787, inference: 8788, store: 8789 });
});

test.each([80, 65_534, 1.5, Number.NaN])("%d is no base for three ports", (base) => {
  expect(() => portsFrom(base)).toThrow("--port-base takes a port from 1024 to 65533");
});

test("a taken port is named with the part that wants it, and on Linux with its holder", async () => {
  const holder = createServer().listen({ host: "127.0.0.1", port: 0 });
  await once(holder, "listening");
  const { port } = holder.address() as AddressInfo;
  const error: unknown = await requireFreePorts({ edge: port, inference: port, store: port }).catch(
    (thrown: unknown) => thrown,
  );
  expect(error).toMatchObject({ code: "ERR_PORT_TAKEN" });
  const by = process.platform === "linux" ? ` by process ${process.pid} \\(.+\\)` : "";
  expect(String(error)).toMatch(new RegExp(`port ${port}, where the edge listens, is taken${by}; .*--port-base`));
  holder.close();
});
