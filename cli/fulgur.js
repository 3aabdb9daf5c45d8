#!/usr/bin/env node
// The `fulgur` command as npm links it: plain JavaScript, because the Node that runs it may be too old to strip types.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const main = fileURLToPath(new URL("./main.ts", import.meta.url));
const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);

if (major > 22 || (major === 22 && minor >= 18)) {
  process.argv[1] = main;
  await import("./main.ts");
} else {
  const node = newerNode();
  if (node === undefined) {
    console.error(
      `fulgur: Node 22.18 or newer is needed, this is ${process.versions.node} and no Node package for ` +
        `${process.platform}-${process.arch} is installed; run "npm ci" in this folder, or install a newer Node.`,
    );
    process.exit(1);
  }
  const child = spawn(node, [main, ...process.argv.slice(2)], { stdio: "inherit" });
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  child.on("exit", (code) => process.exit(code ?? 1));
}

/** The Node that comes with the dependencies (an optional dependency of each platform). */
function newerNode() {
  const resolve = createRequire(import.meta.url).resolve;
  for (const name of [`node-${process.platform}-${process.arch}`, `node-bin-${process.platform}-${process.arch}`]) {
    try {
      return resolve(`${name}/bin/node`);
    } catch {
      // not this one
    }
  }
  return undefined;
}
