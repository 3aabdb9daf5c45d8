import { access, constants, stat, statfs } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { Command, Option } from "commander";
import { z } from "zod";
import { messageOf } from "#shared/errors.ts";
import { probePython, requirements, type Probe } from "../../trainer/engine/torch/probe.ts";
import { INSTALL, pythonPath } from "../../trainer/engine/torch/python.ts";
import { stateDirFlag } from "../flags.ts";
import { LOCAL_TASKS } from "../local-tasks.ts";
import { DEFAULT_PORT_BASE, portsFrom, requireFreePorts } from "../ports.ts";
import { readRunning, stateDir, type StateDir } from "../state.ts";
import { styleFor } from "../terminal/style.ts";

const flagsSchema = z.object({
  stateDir: z.string(),
  engine: z.enum(["onnx", "torch"]),
  python: z.string().optional(),
  json: z.boolean().default(false),
});

/** Before what nothing is missing without. */
const OTHERWISE = "for --engine torch: ";

/** A line of the report. */
interface Finding {
  readonly name: string;
  readonly found: boolean;
  /** Whether a run with the asked engine needs it. */
  readonly needed: boolean;
  /** What was found, or what to do where nothing was. */
  readonly text: string;
}

/**
 * `fulgur doctor`: whether this machine has what an installation needs, each thing with what to do where it has not. It
 * ends with 1 only where something is missing that the asked engine needs.
 */
export function doctorCommand(): Command {
  return new Command("doctor")
    .description("check that this machine has all that is needed")
    .addOption(stateDirFlag())
    .addOption(
      new Option("--engine <name>", "what is to train (docs/ENGINES.md)").choices(["onnx", "torch"]).default("onnx"),
    )
    .addOption(
      new Option(
        "--python <path>",
        "the torch engine's interpreter (default: FULGUR_PYTHON, .venv/bin/python, python3)",
      ),
    )
    .addOption(new Option("--json", "print the findings as JSON"))
    .action(async (given: unknown) => {
      const { stateDir: folder, engine, python, json } = flagsSchema.parse(given);
      const style = styleFor(process.stdout.isTTY, process.env);
      const findings: Finding[] = [];
      for (const { name, check, onlyFor } of checks(stateDir(folder), pythonPath(python, process.env))) {
        const needed = onlyFor === undefined || onlyFor === engine;
        const finding = await check().then(
          (text) => ({ name, found: true, needed, text }),
          (error: unknown) => ({ name, found: false, needed, text: `${needed ? "" : OTHERWISE}${messageOf(error)}` }),
        );
        findings.push(finding);
        if (!json) console.log(shown(finding, style));
      }
      if (json) console.log(JSON.stringify(findings, null, 2));
      if (findings.some(({ found, needed }) => needed && !found)) process.exitCode = 1;
    });
}

function shown({ name, found, needed, text }: Finding, style: ReturnType<typeof styleFor>): string {
  if (found) return `${style.green("✓")} ${name.padEnd(12)} ${style.dim(text)}`;
  return needed ? `${style.red("✗")} ${name.padEnd(12)} ${text}` : style.dim(`– ${name.padEnd(12)} ${text}`);
}

interface Check {
  readonly name: string;
  /** The engine that needs it; absent for what every run needs. */
  readonly onlyFor?: "torch" | "nothing";
  /** What was found; throws what is missing. */
  readonly check: () => Promise<string>;
}

const FREE_BYTES = 1024 ** 3;

function checks(state: StateDir, python: string): Check[] {
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
    ...torchChecks(python),
  ];
}

/** Python, the worker's packages and a GPU. One question to the interpreter answers for all. */
function torchChecks(python: string): Check[] {
  let asked: Promise<Probe> | undefined;
  const probe = (): Promise<Probe> => (asked ??= probePython(python));
  const packageCheck = (name: string): Check => ({
    name,
    onlyFor: "torch",
    check: async () => {
      const [{ packages }, wanted] = await Promise.all([probe(), requirements()]);
      const version = packages[name];
      if (version === undefined || version === null) throw new Error(`not in ${python}; install it with: ${INSTALL}`);
      const tried = wanted.get(name);
      return version.split("+")[0] === tried ? version : `${version}, tried with ${tried}`;
    },
  });
  return [
    {
      name: "python",
      onlyFor: "torch",
      check: async () => {
        const { python: version } = await probe().catch((error: unknown) => {
          throw new Error(`${messageOf(error)}; install Python 3.10 or newer, then: ${INSTALL}`);
        });
        return `${version}, ${python}`;
      },
    },
    ...["torch", "transformers", "peft"].map(packageCheck),
    {
      name: "gpu",
      onlyFor: "nothing",
      check: async () => {
        const { gpus } = await probe();
        if (gpus.length === 0) throw new Error("PyTorch finds none, and trains on the CPU");
        return gpus.join(", ");
      },
    },
  ];
}
