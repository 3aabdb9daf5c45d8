import { mkdir, readdir, writeFile } from "node:fs/promises";
import { dirname } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { join } from "node:path";
import { parseArgs, type ParseArgsOptionsConfig } from "node:util";
import Table from "cli-table3";
import type { BenchResult } from "./result.ts";

/**
 * `npm run bench -- NAME --json FILE`: runs one benchmark of this folder, prints its table and notes, and writes its
 * result. A benchmark is a module that exports `name` and `run()`; one that takes flags of its own exports them as `options`
 * and gets their values; `--help` shows each one's `about`.
 */

const FOLDER = dirname(fileURLToPath(import.meta.url));
/** Modules of this folder that are no benchmarks. */
const NOT_BENCHMARKS = new Set(["run.ts", "result.ts"]);

interface Benchmark {
  readonly name: string;
  /** A line for `--help`. */
  readonly about?: string;
  /** Flags of its own, as parseArgs takes them. */
  readonly options?: ParseArgsOptionsConfig;
  readonly run: (flags: Readonly<Record<string, unknown>>) => Promise<BenchResult>;
}

const names = (await readdir(FOLDER))
  .filter((file) => file.endsWith(".ts") && !NOT_BENCHMARKS.has(file))
  .map((file) => file.slice(0, -".ts".length))
  .toSorted();

try {
  const [name, ...flags] = process.argv.slice(2);
  if (name === "--help" || name === "-h") {
    await help();
  } else if (name === undefined || !names.includes(name)) {
    const wrong = name === undefined ? "which benchmark?" : `there is no benchmark ${name}.`;
    console.error(`${wrong} npm run bench -- NAME [--json FILE], with NAME one of: ${names.join(", ")}`);
    process.exitCode = 2;
  } else {
    const benchmark = await load(name);
    const options: ParseArgsOptionsConfig = {
      ...benchmark.options,
      json: { type: "string" },
      help: { type: "boolean" },
    };
    const { json, help: wantsHelp, ...values } = parseArgs({ args: flags, options }).values;
    if (wantsHelp === true) {
      console.log(line(benchmark));
    } else {
      const result = await benchmark.run(values);
      print(result);
      if (typeof json === "string") {
        await mkdir(dirname(json), { recursive: true });
        await writeFile(json, `${JSON.stringify(result, null, 2)}\n`);
        console.log(`written to ${json}`);
      }
    }
  }
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error));
  // A mistaken flag is the caller's; parseArgs names it.
  process.exitCode = error instanceof TypeError && "code" in error ? 2 : 1;
}
// A peer's child process or a library's thread must not keep a finished benchmark alive.
process.exit();

async function help(): Promise<void> {
  console.log("npm run bench -- NAME [--json FILE]\n");
  for (const name of names) console.log(line(await load(name)));
}

/** Its name, its flags and what it measures. */
function line({ name, about = "", options = {} }: Benchmark): string {
  const flags = Object.keys(options).map((flag) => `[--${flag} ${flag === "case" ? "NAME" : "N"}]`);
  return `  ${[name, ...flags].join(" ").padEnd(36)} ${about}`;
}

async function load(name: string): Promise<Benchmark> {
  const module: unknown = await import(pathToFileURL(join(FOLDER, `${name}.ts`)).href);
  if (!isBenchmark(module)) throw new Error(`bench/${name}.ts does not export name and run()`);
  return module;
}

function isBenchmark(module: unknown): module is Benchmark {
  return (
    typeof module === "object" &&
    module !== null &&
    "name" in module &&
    "run" in module &&
    typeof module.run === "function"
  );
}

function print({ name, ratio, table, notes }: BenchResult): void {
  const columns = [...new Set(table.flatMap((row) => Object.keys(row)))];
  const drawn = new Table({ head: columns, style: { head: [], border: [] } });
  for (const row of table) drawn.push(columns.map((column) => shown(row[column])));
  console.log(`\n${name}`);
  console.log(drawn.toString());
  for (const note of notes) console.log(`- ${note}`);
  if (ratio !== null) console.log(`ratio to the strongest peer on the headline case: ${ratio.toFixed(2)}`);
}

function shown(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") {
    return Number.isInteger(value) || Math.abs(value) >= 1000
      ? Math.round(value).toLocaleString("en")
      : value.toPrecision(3);
  }
  return typeof value === "string" ? value : JSON.stringify(value);
}
