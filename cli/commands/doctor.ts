import { access, constants, stat, statfs } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { Command } from "commander";
import { z } from "zod";
import { messageOf } from "#shared/errors.ts";
import { stateDirFlag } from "../flags.ts";
import { LOCAL_TASKS } from "../local-tasks.ts";
import { DEFAULT_PORT_BASE, portsFrom, requireFreePorts } from "../ports.ts";
import { readRunning, stateDir, type StateDir } from "../state.ts";
import { styleFor } from "../terminal/style.ts";

/** `fulgur doctor`: whether this machine has what an installation needs, each thing with what to do where it has not. */
export function doctorCommand(): Command {
  return new Command("doctor")
    .description("check that this machine has all that is needed")
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const { stateDir: folder } = z.object({ stateDir: z.string() }).parse(given);
      const style = styleFor(process.stdout.isTTY, process.env);
      let failures = 0;
      for (const { name, check } of checks(stateDir(folder))) {
        try {
          console.log(`${style.green("✓")} ${name.padEnd(12)} ${style.dim(await check())}`);
        } catch (error) {
          failures += 1;
          console.log(`${style.red("✗")} ${name.padEnd(12)} ${messageOf(error)}`);
        }
      }
      if (failures > 0) process.exitCode = 1;
    });
}

interface Check {
  readonly name: string;
  /** What was found; throws what is missing. */
  readonly check: () => Promise<string>;
}

const FREE_BYTES = 1024 ** 3;

function checks(state: StateDir): Check[] {
  const { resolve } = createRequire(import.meta.url);
  return [
    { name: "node", check: async () => `${process.versions.node} on ${process.platform}-${process.arch}` },
    { name: "store", check: async () => (await import("../parts/store.ts")).findSqld() },
    {
      name: "edge",
      check: async () => {
        const binary = resolve("workerd/package.json");
        return `workerd ${z.object({ version: z.string() }).parse(createRequire(import.meta.url)(binary)).version}`;
      },
    },
    {
      name: "inference",
      check: async () => {
        const { listSupportedBackends } = await import("onnxruntime-node");
        return `ONNX Runtime with ${listSupportedBackends()
          .map((backend) => backend.name)
          .join(", ")}`;
      },
    },
    {
      name: "model",
      check: async () => {
        const found: string[] = [];
        for (const { model } of Object.values(LOCAL_TASKS)) {
          const { size } = await stat(join(model, "model.safetensors")).catch(() => {
            throw new Error(`${model} has no model.safetensors; make the built-in model with npm run model`);
          });
          found.push(`${model} (${(size / 1024 ** 2).toFixed(1)} MiB)`);
        }
        return found.join(", ");
      },
    },
    {
      name: "ports",
      check: async () => {
        const running = await readRunning(state);
        if (running !== undefined) return `in use by the running installation, ${running.edge_url}`;
        await requireFreePorts(portsFrom(DEFAULT_PORT_BASE));
        return "8787, 8788 and 8789 are free";
      },
    },
    {
      name: "disk",
      check: async () => {
        const parent = join(state.root, "..");
        await access(parent, constants.W_OK).catch(() => {
          throw new Error(`${parent} is not writable; name another folder with --state-dir`);
        });
        const { bavail, bsize } = await statfs(parent);
        const free = bavail * bsize;
        if (free < FREE_BYTES) throw new Error(`${(free / 1024 ** 2).toFixed(0)} MiB are free; a run wants 1 GiB`);
        return `${(free / 1024 ** 3).toFixed(1)} GiB free for ${state.root}`;
      },
    },
  ];
}
