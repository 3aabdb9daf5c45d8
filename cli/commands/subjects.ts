import { Command } from "commander";
import { z } from "zod";
import { snakeKeys } from "#shared/wire.ts";
import type { SubjectDeleted } from "#shared/wire-feedback.ts";
import { versionName } from "#shared/words.ts";
import { localEdge } from "../edge-access.ts";
import { stateDirFlag } from "../flags.ts";
import { stateDir } from "../state.ts";

const flagsSchema = z.object({ json: z.boolean().default(false), stateDir: z.string() });

/** `fulgur subjects delete ID`: what is kept of a person is deleted, and what was learned from it is said. */
export function subjectsCommand(): Command {
  const command = new Command("subjects").description("the people whose data live rollouts hold");
  command
    .command("delete")
    .description("delete what is kept of a person, and say what was trained on already")
    .argument("<id>", "the subject's id, as the agent gave it")
    .option("--json", "print JSON")
    .addOption(stateDirFlag())
    .action(async (id: string, given: unknown) => {
      const flags = flagsSchema.parse(given);
      const { client } = await localEdge(stateDir(flags.stateDir), "admin");
      const deleted = await client.deleteSubject(id);
      console.log(flags.json ? JSON.stringify(snakeKeys(deleted), null, 2) : deletionText(deleted));
    });
  return command;
}

/** What a deletion meant, in sentences. */
export function deletionText({ subject, rollouts, dropped, claimed, trained }: SubjectDeleted): string {
  if (rollouts === 0) return `nothing is kept of ${subject}`;
  const lines = [`deleted what ${rollouts} rollouts of ${subject} held; ${dropped} of them will not be trained on`];
  for (const { batch_id: batch, step, rollouts: count } of claimed) {
    lines.push(`${count} were in batch ${batch} (step ${step}), which is under way: its trainer may have read them`);
  }
  for (const { policy, version, batch_id: batch, rollouts: count } of trained) {
    const into = version === null ? policy : versionName(policy, version);
    lines.push(`${count} were trained into ${into} before (batch ${batch})`);
  }
  if (trained.length > 0) lines.push("later versions descend from those; train from an earlier one to be rid of it");
  return lines.join("\n");
}
