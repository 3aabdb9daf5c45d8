import { execFile } from "node:child_process";
import { expect, test } from "vitest";

/** What it does once its words are right is in test/trainer/engine/torch/nodes.test.ts. */
function join(...args: readonly string[]): Promise<{ code: number | string | null | undefined; stderr: string }> {
  const { promise, resolve } = Promise.withResolvers<{ code: number | string | null | undefined; stderr: string }>();
  execFile(process.execPath, ["cli/fulgur.js", "join", ...args], (error, _stdout, stderr) =>
    resolve({ code: error === null ? 0 : error.code, stderr }),
  );
  return promise;
}

test.each([
  [["nowhere", "--nodes", "2", "--node", "1"], "wanted HOST:PORT, the trainer's --rendezvous; nowhere came", 2],
  [
    ["10.0.0.1:29500", "--nodes", "2", "--node", "2"],
    "--node: wanted 1 to 1, this machine's number among --nodes 2",
    2,
  ],
  [["10.0.0.1:29500", "--nodes", "1", "--node", "1"], "--nodes: ", 2],
  [["10.0.0.1:29500", "--nodes", "2", "--node", "1", "--devices", "none"], "--devices: ", 2],
  [["10.0.0.1:29500", "--nodes", "2", "--node", "1", "--python", "/no/python"], "npx fulgur doctor --engine torch", 1],
])("fulgur join %j says what is wrong", async (args, said, exit) => {
  const { code, stderr } = await join(...args);
  expect(code).toBe(exit);
  expect(stderr).toContain(said);
});
