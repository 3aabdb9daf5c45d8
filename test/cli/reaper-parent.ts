import { spawnPart } from "../../cli/part.ts";
import { startReaper } from "../../cli/reaper.ts";

/** A parent for reaper.test.ts: starts one part whose own child outlives it unless the group is killed, and waits. */
const reaper = startReaper();
const GRANDCHILD = "setInterval(() => {}, 1000)";
const CHILD = `
  const child = require("node:child_process").spawn(process.execPath, ["-e", ${JSON.stringify(GRANDCHILD)}]);
  console.log("pids " + process.pid + "," + child.pid);
  setInterval(() => {}, 1000);
`;
const part = await spawnPart({
  name: "edge",
  command: process.execPath,
  args: ["-e", CHILD],
  logPath: process.argv[2] ?? "",
  readyUrl: (line) => /^pids (\S+)/.exec(line)?.[1],
});
reaper.watch(part.pid);
console.log(part.url);
setInterval(() => {}, 1000);
