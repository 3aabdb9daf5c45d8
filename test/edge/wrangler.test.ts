import { execFile } from "node:child_process";
import { mkdtemp, mkdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { COMPATIBILITY_DATE } from "../../cli/parts/edge-host.ts";

const ROOT = join(import.meta.dirname, "../..");
const run = promisify(execFile);
let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "fulgur-wrangler-"));
  // The page's folder must be there; what is in it does not matter here.
  await mkdir(join(ROOT, "edge/dashboard/dist"), { recursive: true });
});
afterAll(() => rm(folder, { recursive: true, force: true }));

async function dryRun(config: string): Promise<string> {
  const wrangler = join(ROOT, "node_modules/wrangler/bin/wrangler.js");
  const args = [wrangler, "deploy", "--dry-run", "-c", join(ROOT, config), "--outdir", join(folder, config)];
  const { stdout, stderr } = await run(process.execPath, args, {
    env: { ...process.env, WRANGLER_SEND_METRICS: "false", WRANGLER_LOG_PATH: folder, NO_COLOR: "1", CI: "1" },
  });
  expect(stderr).not.toMatch(/error|warning/i);
  return stdout;
}

describe("wrangler deploy --dry-run", () => {
  it("takes the edge with all that its environment needs", async () => {
    const said = await dryRun("edge/wrangler.jsonc");
    expect(said).toContain("--dry-run: exiting now.");
    for (const binding of [
      "WRITER",
      "DISPATCHER",
      "ROLLOUTS",
      "AGENT_FLIGHT",
      "EVAL_SQL",
      "ASSETS",
      "STORE_URL",
      "INFERENCE_URL",
      "PUBLIC_URL",
      "AGENTS",
    ]) {
      expect(said).toContain(`env.${binding} `);
    }
  }, 60_000);

  const others = ["edge/agents/flight/wrangler.jsonc", "edge/evaluators/sql/wrangler.jsonc"];

  it.each(others)("takes %s", async (file) => expect(await dryRun(file)).toContain("--dry-run: exiting now."), 60_000);

  it.each(["edge/wrangler.jsonc", ...others])("%s runs on the same date as here", async (file) => {
    const text = await readFile(join(ROOT, file), "utf8");
    expect(/"compatibility_date": "([^"]+)"/.exec(text)?.[1]).toBe(COMPATIBILITY_DATE);
  });
});
