import { Command, Option } from "commander";
import { z } from "zod";
import { snakeKeys } from "#shared/wire.ts";
import { KEY_SCOPES } from "#shared/words.ts";
import { localEdge } from "../edge-access.ts";
import { integer, stateDirFlag } from "../flags.ts";
import { rotateSigningKey } from "../keys.ts";
import { readRunning, stateDir } from "../state.ts";
import { columns, minuteOf } from "../terminal/columns.ts";
import { styleFor } from "../terminal/style.ts";

const createFlagsSchema = z.object({
  scope: z.enum(KEY_SCOPES),
  agent: z.string().optional(),
  label: z.string().default(""),
  rate: z.number().optional(),
  quiet: z.boolean().default(false),
  stateDir: z.string(),
});
const listFlagsSchema = z.object({ json: z.boolean().default(false), stateDir: z.string() });
const flagsSchema = z.object({ stateDir: z.string() });

/** `fulgur keys`: long-lived keys, made, listed, revoked; the edge's own signing key, rotated. */
export function keysCommand(): Command {
  const command = new Command("keys").description("long-lived keys: make, list and revoke them");

  command
    .command("create")
    .description("make a key and print it, this once")
    .addOption(
      new Option("--scope <scope>", "admin: everything; trainer: train and read; agent: LLM calls; read: look")
        .choices(KEY_SCOPES)
        .makeOptionMandatory(),
    )
    .option("--agent <name>", "the one agent that it may call for")
    .option("--label <text>", "what it is for, for those who list keys")
    .addOption(new Option("--rate <n>", "requests a minute that it may make").argParser(integer(1, 1_000_000)))
    .option("--quiet", "print the key alone")
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const { scope, agent, label, rate, quiet, stateDir: folder } = createFlagsSchema.parse(given);
      const { client } = await localEdge(stateDir(folder), "admin");
      const made = await client.createKey({ scope, agent: agent ?? null, label, ratePerMinute: rate ?? null });
      console.log(made.key);
      if (!quiet) {
        console.error(
          `This is shown once. Its scope is ${scope}${agent === undefined ? "" : `, for agent ${agent}`}; npx fulgur keys revoke ${made.id} ends it.`,
        );
      }
    });

  command
    .command("list")
    .description("list the keys, newest first, without the keys themselves")
    .option("--json", "print JSON, as the edge gives it")
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const { json, stateDir: folder } = listFlagsSchema.parse(given);
      const { client } = await localEdge(stateDir(folder), "admin");
      const keys = await client.listKeys();
      if (json) return console.log(JSON.stringify(keys.map(snakeKeys), null, 2));
      if (keys.length === 0) return console.log("no keys yet; npx fulgur keys create --scope agent makes one");
      console.log(
        columns(
          ["KEY", "SCOPE", "AGENT", "RATE", "MADE", "REVOKED", "LABEL"],
          keys.map((key) => [
            key.id,
            key.scope,
            key.agent ?? "any",
            key.ratePerMinute === null ? "" : `${key.ratePerMinute}/min`,
            minuteOf(key.createdAt),
            key.revokedAt === null ? "" : minuteOf(key.revokedAt),
            key.label,
          ]),
          styleFor(process.stdout.isTTY, process.env),
        ),
      );
    });

  command
    .command("revoke")
    .description("end a key; it is refused from then on")
    .argument("<id>", "the key's id, as keys list shows it")
    .addOption(stateDirFlag())
    .action(async (id: string, given: unknown) => {
      const { client } = await localEdge(stateDir(flagsSchema.parse(given).stateDir), "admin");
      await client.revokeKey(id);
      console.log(`key ${id} is revoked`);
    });

  command
    .command("rotate-signing")
    .description("put a new key for signing tokens first; the one before verifies until its tokens have expired")
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const state = stateDir(flagsSchema.parse(given).stateDir);
      const kid = await rotateSigningKey(state.keys);
      const running = await readRunning(state);
      console.log(
        `the new signing key is ${kid}; ${running === undefined ? "the edge signs with it from its next start on" : "the edge that runs takes it at its next start: stop it and npm start again"}`,
      );
    });
  return command;
}
