import { Command, Option } from "commander";
import { z } from "zod";
import type { TenantPatch } from "#shared/wire-tenant.ts";
import { localEdge } from "../edge-access.ts";
import { amount, stateDirFlag } from "../flags.ts";
import { stateDir } from "../state.ts";

const NEVER = "none";

const showFlagsSchema = z.object({ stateDir: z.string() });
const setFlagsSchema = z.object({
  failOpen: z.enum(["yes", "no"]).optional(),
  retentionDays: z.union([z.number(), z.literal(NEVER)]).optional(),
  monthlyBudget: z.union([z.number(), z.literal(NEVER)]).optional(),
  otlpExport: z.string().optional(),
  otlpKeyEnv: z.string().optional(),
  stateDir: z.string(),
});

/** `fulgur tenant` shows what holds for everything of the tenant; `fulgur tenant set` changes it. */
export function tenantCommand(): Command {
  const command = new Command("tenant")
    .description("show the tenant's settings: retention, budget, export, and live calls while the store is away")
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const flags = showFlagsSchema.parse(given);
      const { client } = await localEdge(stateDir(flags.stateDir), "read");
      console.log(JSON.stringify((await client.readTenant()).settings, null, 2));
    });

  command
    .command("set")
    .description("change settings; what is not named stays")
    .addOption(
      new Option("--fail-open <yes|no>", "answer live calls although they cannot be recorded").choices(["yes", "no"]),
    )
    .addOption(new Option("--retention-days <n>", "delete live rollouts after this, or none").argParser(amountOrNone))
    .addOption(
      new Option("--monthly-budget <amount>", "refuse calls beyond it with 402, or none").argParser(amountOrNone),
    )
    .option("--otlp-export <url>", "send calls as OTLP spans to this collector, or none")
    .option("--otlp-key-env <name>", "the edge's variable OTLP_… that holds the collector's key")
    .addOption(stateDirFlag())
    .action(async (_given: unknown, self: Command) => {
      const flags = setFlagsSchema.parse(self.optsWithGlobals());
      const { client } = await localEdge(stateDir(flags.stateDir), "admin");
      console.log(JSON.stringify((await client.patchTenant(patchOf(flags))).settings, null, 2));
    });
  return command;
}

function amountOrNone(text: string): number | typeof NEVER {
  return text === NEVER ? NEVER : amount(text);
}

function patchOf({
  failOpen,
  retentionDays,
  monthlyBudget,
  otlpExport,
  otlpKeyEnv,
}: z.infer<typeof setFlagsSchema>): TenantPatch {
  return {
    ...(failOpen === undefined ? {} : { fail_open: failOpen === "yes" }),
    ...(retentionDays === undefined ? {} : { retention_days: retentionDays === NEVER ? null : retentionDays }),
    ...(monthlyBudget === undefined ? {} : { monthly_budget: monthlyBudget === NEVER ? null : monthlyBudget }),
    ...(otlpExport === undefined
      ? {}
      : {
          otlp_export:
            otlpExport === NEVER
              ? null
              : { url: otlpExport, ...(otlpKeyEnv === undefined ? {} : { key_env: otlpKeyEnv }) },
        }),
  };
}
