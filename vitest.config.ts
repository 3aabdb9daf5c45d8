import { cloudflareTest } from "@cloudflare/vitest-plugin";
import { defineConfig } from "vitest/config";

/** Whole-system tests: they start every part and want the machine to themselves. */
const SYSTEM = ["browser", "faults", "e2e"] as const;
const SYSTEM_FILES = SYSTEM.map((folder) => `test/${folder}/**/*.test.ts`);

/**
 * Two runtimes: `node` and `system` for the trainer, the command line and the whole, `workerd` for what must run at the edge
 * (`*.workerd.test.ts`, without a configured Worker: a test imports what it tests and makes its own bindings). Files run at
 * most two at a time: most of them start real processes, and CI has two cores.
 */
export default defineConfig({
  test: {
    maxWorkers: 2,
    testTimeout: 30_000,
    hookTimeout: 60_000,
    projects: [
      {
        extends: true,
        test: {
          name: "node",
          include: ["test/**/*.test.ts"],
          exclude: ["**/*.workerd.test.ts", "**/node_modules/**", ...SYSTEM_FILES],
          setupFiles: ["test/support/property-seed.ts"],
          pool: "forks",
        },
      },
      { extends: true, test: { name: "system", include: SYSTEM_FILES, pool: "forks" } },
      {
        extends: true,
        plugins: [
          cloudflareTest({
            miniflare: { compatibilityDate: "2026-11-01", compatibilityFlags: ["nodejs_compat"], cf: false },
          }),
        ],
        test: { name: "workerd", include: ["test/**/*.workerd.test.ts"] },
      },
    ],
  },
});
