import { Command, Option } from "commander";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { MAX_TTL_SECONDS } from "#shared/tokens.ts";
import { MODES, SCOPES } from "#shared/words.ts";
import { localEdge } from "../edge-access.ts";
import { lifetime, stateDirFlag } from "../flags.ts";
import { stateDir } from "../state.ts";

const flagsSchema = z.object({
  mode: z.enum(MODES).optional(),
  agent: z.string().optional(),
  scope: z.enum(SCOPES).optional(),
  pin: z.string().optional(),
  ttl: z.number(),
  stateDir: z.string(),
});

/** `fulgur token`: a key for an SDK (one rollout of one agent), or for the edge's own interface (a scope). */
export function tokenCommand(): Command {
  return new Command("token")
    .description("print a key: for an LLM SDK (--agent and --mode), or for the edge's own interface (--scope)")
    .addOption(new Option("--mode <mode>", "what the rollout is for").choices(MODES))
    .option("--agent <name>", "the agent whose policy answers")
    .option("--pin <version>", "answer from this version whatever the route says, such as flight@13")
    .addOption(
      new Option("--scope <scope>", "a key for the edge's own interface").choices(
        SCOPES.filter((scope) => scope !== "call"),
      ),
    )
    .addOption(
      new Option("--ttl <time>", "how long it is valid")
        .default(MAX_TTL_SECONDS, "15m")
        .argParser(lifetime(MAX_TTL_SECONDS)),
    )
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const { mode, agent, scope, pin, ttl, stateDir: folder } = flagsSchema.parse(given);
      const wantsRollout = mode !== undefined && agent !== undefined && scope === undefined;
      const wantsScope = scope !== undefined && mode === undefined && agent === undefined && pin === undefined;
      if (!wantsRollout && !wantsScope) {
        throw new FulgurError(
          "ERR_CONFIG",
          "token takes either --agent and --mode (a key for an LLM SDK), or --scope alone (a key for the edge's own interface)",
        );
      }
      const { client } = await localEdge(stateDir(folder), "admin");
      const grant = await client.createToken(
        wantsRollout
          ? { agent, mode, pin: pin ?? null, ttlSeconds: ttl }
          : { scopes: [scope ?? "read"], ttlSeconds: ttl },
      );
      console.log(grant.token);
    });
}
