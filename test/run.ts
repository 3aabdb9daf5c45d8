import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { z } from "zod";
import { buildDashboard } from "../cli/parts/dashboard.ts";

/**
 * `npm test`: all that CI checks, stage by stage, cheapest first, stopping at the first stage that fails. The last
 * line counts the tests of all stages. `--all` goes on after a failure, `--only NAME` runs one stage.
 */

interface Stage {
  readonly name: string;
  readonly what: string;
  run(): Promise<Counts>;
}

interface Counts {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
  readonly isOk: boolean;
}

const ROOT = join(dirname(fileURLToPath(import.meta.url)), "..");
const ORACLES =
  process.env["PYTHON"] !== undefined || existsSync(join(ROOT, ".venv/bin/python"))
    ? "numbers against PyTorch, live"
    : "numbers against committed PyTorch fixtures";

const stages: readonly Stage[] = [
  { name: "format", what: "oxfmt", run: () => command("oxfmt", ["--check"]) },
  {
    name: "lint",
    what: "oxlint, type-aware; the arrows between the parts",
    run: () => command("oxlint", ["--type-aware"]),
  },
  { name: "typecheck", what: "tsc over all projects", run: () => command("tsc", ["-b"]) },
  { name: "dashboard", what: "the page's bundle", run: dashboard },
  {
    name: "unit",
    what: `unit, contract and conformance tests, in Node and in workerd, ${ORACLES}`,
    run: () => vitest(["--project", "node", "--project", "workerd"]),
  },
  { name: "browser", what: "the page in a real browser", run: () => vitest(["--project", "system", "test/browser/"]) },
  {
    name: "faults",
    what: "parts killed, store away, upstream broken, order, clocks, disks full",
    run: () => vitest(["--project", "system", "test/faults/", "--no-file-parallelism"]),
  },
  {
    name: "e2e",
    what: "the whole system learns",
    run: () => vitest(["--project", "system", "test/e2e/", "--no-file-parallelism"]),
  },
];

/** What is read of vitest's JSON report. */
const reportSchema = z.object({
  numPassedTests: z.number(),
  numFailedTests: z.number(),
  numPendingTests: z.number(),
  success: z.boolean(),
});

const { values } = parseArgs({ options: { all: { type: "boolean", default: false }, only: { type: "string" } } });
const chosen = stages.filter(({ name }) => values.only === undefined || values.only === name);
if (chosen.length === 0) {
  console.error(`there is no stage ${values.only}; there are ${stages.map(({ name }) => name).join(", ")}`);
  process.exit(2);
}

let passed = 0;
let failed = 0;
const broken: string[] = [];
for (const [index, stage] of chosen.entries()) {
  console.log(`\n[${index + 1}/${chosen.length}] ${stage.name}: ${stage.what}`);
  const startedAt = performance.now();
  const counts = await stage.run();
  passed += counts.passed;
  failed += counts.failed;
  const tests = counts.passed + counts.failed;
  const skipped = counts.skipped > 0 ? `, ${counts.skipped} skipped` : "";
  const what = tests > 0 ? ` (${counts.passed} of ${tests} tests passed${skipped})` : "";
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(1);
  console.log(`[${index + 1}/${chosen.length}] ${stage.name}: ${counts.isOk ? "ok" : "FAILED"} in ${seconds} s${what}`);
  if (!counts.isOk) {
    broken.push(stage.name);
    if (!values.all) break;
  }
}
if (broken.length > 0) console.log(`\nfailed: ${broken.join(", ")}`);
console.log(`${passed} passed, ${failed} failed`);
process.exit(broken.length > 0 ? 1 : 0);

async function command(name: string, args: readonly string[]): Promise<Counts> {
  const code = await execute(name, args);
  return { passed: 0, failed: 0, skipped: 0, isOk: code === 0 };
}

async function dashboard(): Promise<Counts> {
  await buildDashboard(ROOT);
  return { passed: 0, failed: 0, skipped: 0, isOk: true };
}

/** A run of vitest; its own report is counted, so that a file which never loaded fails the stage too. */
async function vitest(args: readonly string[]): Promise<Counts> {
  const folder = await mkdtemp(join(tmpdir(), "fulgur-test-"));
  const report = join(folder, "report.json");
  try {
    const code = await execute("vitest", [
      "run",
      ...args,
      "--reporter=default",
      "--reporter=json",
      `--outputFile.json=${report}`,
    ]);
    const parsed = reportSchema.safeParse(JSON.parse(await readFile(report, "utf8").catch(() => "null")));
    if (!parsed.success) return { passed: 0, failed: 0, skipped: 0, isOk: false };
    const { numPassedTests, numFailedTests, numPendingTests, success } = parsed.data;
    const isOk = code === 0 && success && numPassedTests > 0;
    return { passed: numPassedTests, failed: numFailedTests, skipped: numPendingTests, isOk };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function execute(name: string, args: readonly string[]): Promise<number | null> {
  const child = spawn(join(ROOT, "node_modules/.bin", name), args, {
    cwd: ROOT,
    stdio: "inherit",
  });
  const [code]: unknown[] = await once(child, "exit");
  return typeof code === "number" ? code : null;
}
