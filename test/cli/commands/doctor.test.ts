import { execFile } from "node:child_process";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it, vi } from "vitest";
import { z } from "zod";

// A command line is a process of its own, and the first test starts two.
vi.setConfig({ testTimeout: 60_000 });

let dir = "";
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-doctor-"));
});
afterAll(() => rm(dir, { recursive: true, force: true }));

/** An interpreter that answers the probe with these versions. */
async function pythonWith(packages: Record<string, string | null>, gpus: readonly string[]): Promise<string> {
  const path = join(dir, `python-${Object.keys(packages).join("-")}-${gpus.length}`);
  const answer = JSON.stringify({ python: "3.12.1", packages, gpus });
  await writeFile(path, `#!/bin/sh\necho '${answer}'\n`);
  await chmod(path, 0o755);
  return path;
}

const findingSchema = z.array(
  z.strictObject({ name: z.string(), found: z.boolean(), needed: z.boolean(), text: z.string() }),
);

/** Exit code and findings by name; those of what this machine has besides are not looked at. */
async function doctor(args: readonly string[]) {
  const { code, stdout } = await new Promise<{ code: unknown; stdout: string }>((resolve) => {
    execFile(process.execPath, ["cli/fulgur.js", "doctor", "--json", ...args], (error, stdout) =>
      resolve({ code: error === null ? 0 : error.code, stdout }),
    );
  });
  const findings = findingSchema.parse(JSON.parse(stdout));
  const isBroken = findings.some(({ needed, found }) => needed && !found);
  expect(code).toBe(isBroken ? 1 : 0);
  return { isBroken, of: new Map(findings.map((finding) => [finding.name, finding])) };
}

it("names what the torch engine lacks with the command that installs it, and fails only where it was asked for", async () => {
  const python = await pythonWith({ torch: "2.13.0+cpu", transformers: "4.0.0", peft: null }, []);
  const asked = await doctor(["--engine", "torch", "--python", python]);
  expect(asked.isBroken).toBe(true);
  expect(asked.of.get("python")).toMatchObject({ found: true, text: `3.12.1, ${python}` });
  expect(asked.of.get("torch")).toMatchObject({ found: true, needed: true, text: "2.13.0+cpu" });
  expect(asked.of.get("transformers")?.text).toMatch(/^4\.0\.0, tried with 5\.\d+\.\d+$/);
  expect(asked.of.get("peft")).toMatchObject({
    found: false,
    needed: true,
    text: `not in ${python}; install it with: python3 -m venv .venv && .venv/bin/pip install -r trainer/engine/torch/requirements.txt`,
  });
  expect(asked.of.get("gpu")).toMatchObject({ found: false, needed: false });

  const embedded = await doctor(["--python", python]);
  expect(embedded.of.get("peft")).toMatchObject({ found: false, needed: false });
  for (const name of ["node", "store", "edge", "inference", "model"]) {
    expect(embedded.of.get(name)).toMatchObject({ needed: true });
  }
});

it("finds a whole environment and its GPUs", async () => {
  const python = await pythonWith({ torch: "2.13.0", transformers: "5.23.0", peft: "0.21.2" }, ["NVIDIA H100"]);
  const { of } = await doctor(["--engine", "torch", "--python", python]);
  for (const name of ["python", "torch", "transformers", "peft"]) expect(of.get(name)).toMatchObject({ found: true });
  expect(of.get("gpu")).toMatchObject({ found: true, text: "NVIDIA H100" });
});

it("says what to do where there is no Python", async () => {
  const { of, isBroken } = await doctor(["--engine", "torch", "--python", "/nonexistent/python"]);
  expect(isBroken).toBe(true);
  expect(of.get("python")?.text).toMatch(/^cannot run \/nonexistent\/python .*; install Python 3\.10 or newer, then: /);
});
