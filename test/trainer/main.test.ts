import { execFile } from "node:child_process";
import { expect, it } from "vitest";

/** The trainer's process with some flags: exit code and what it wrote. */
function run(args: readonly string[], env: Readonly<Record<string, string>> = {}) {
  return new Promise<{ code: number | string | null; stdout: string; stderr: string }>((resolve) => {
    execFile(
      process.execPath,
      ["trainer/main.ts", ...args],
      { env: { ...process.env, FULGUR_STORE_TOKEN: "", ...env } },
      (error, stdout, stderr) => resolve({ code: error === null ? 0 : (error.code ?? null), stdout, stderr }),
    );
  });
}

it("explains its flags", async () => {
  const { code, stdout } = await run(["--help"]);
  expect(code).toBe(0);
  expect(stdout).toContain("Usage: node trainer/main.ts --run ID [flags]");
  expect(stdout).toContain("--group-size");
});

it.each([
  [["--run", "r", "--grops", "3"], {}, "there is no flag --grops; see --help\n"],
  [["--run", "r"], {}, "FULGUR_STORE_TOKEN is not set; it holds the store's read-only token\n"],
  [
    ["--run", "r", "--state-dir", "/nonexistent"],
    { FULGUR_STORE_TOKEN: "t" },
    "/nonexistent/keys/edge.json holds no signing keys; give the folder of an installation with --state-dir\n",
  ],
])("ends with code 2 and one sentence for %j", async (args, env, sentence) => {
  const { code, stdout, stderr } = await run(args, env);
  expect({ code, stdout, stderr }).toEqual({ code: 2, stdout: "", stderr: sentence });
});
