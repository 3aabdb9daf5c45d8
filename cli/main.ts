import { Command, CommanderError } from "commander";
import { ablateCommand } from "./commands/ablate.ts";
import { agentsCommand } from "./commands/agents.ts";
import { algorithmsCommand } from "./commands/algorithms.ts";
import { auditCommand } from "./commands/audit.ts";
import { doctorCommand } from "./commands/doctor.ts";
import { joinCommand } from "./commands/join.ts";
import { keysCommand } from "./commands/keys.ts";
import { policiesCommand } from "./commands/policies.ts";
import { pricesCommand } from "./commands/prices.ts";
import { providersCommand } from "./commands/providers.ts";
import { rewardsCommand } from "./commands/rewards.ts";
import { rolloutsCommand } from "./commands/rollouts.ts";
import { shardsCommand } from "./commands/shards.ts";
import { startCommand } from "./commands/start.ts";
import { subjectsCommand } from "./commands/subjects.ts";
import { tenantCommand } from "./commands/tenant.ts";
import { tokenCommand } from "./commands/token.ts";
import { usageCommand } from "./commands/usage.ts";
import { exitCodeOf, failureText } from "./failure.ts";

/** The `fulgur` command. Results go to stdout, complaints to stderr; 0 is success, 1 a failure, 2 a wrong command line. */
const program = new Command("fulgur")
  .description("Trains the LLM agents that you already have, from the runs they already make.")
  .showSuggestionAfterError()
  .exitOverride()
  .configureOutput({ outputError: (text, write) => write(text.replace(/^error: /, "fulgur: ")) });

const commands = [
  startCommand(),
  tokenCommand(),
  keysCommand(),
  agentsCommand(),
  algorithmsCommand(),
  ablateCommand(),
  providersCommand(),
  rolloutsCommand(),
  policiesCommand(),
  rewardsCommand(),
  usageCommand(),
  pricesCommand(),
  tenantCommand(),
  subjectsCommand(),
  auditCommand(),
  shardsCommand(),
  doctorCommand(),
  joinCommand(),
];
for (const command of commands) {
  program.addCommand(command.copyInheritedSettings(program));
  for (const inner of command.commands) inner.copyInheritedSettings(program);
}

// A reader that leaves early (`| head`) is no failure.
process.stdout.on("error", (error: NodeJS.ErrnoException) => process.exit(error.code === "EPIPE" ? 0 : 1));

try {
  await program.parseAsync();
} catch (error) {
  if (error instanceof CommanderError) {
    // Help and the version end with 0; all else that commander throws is a wrong command line, already said.
    process.exitCode = error.exitCode === 0 ? 0 : 2;
  } else {
    console.error(failureText(error));
    process.exitCode = exitCodeOf(error);
  }
}
