import { availableParallelism } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { Command, Option } from "commander";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { rendezvousSchema } from "../../trainer/engine/torch/options.ts";
import { pythonPath } from "../../trainer/engine/torch/python.ts";
import { lendRanks } from "../../trainer/engine/torch/worker.ts";

/** Ended ranks are started again after so long: the trainer, too, has to come back first. */
const AGAIN_AFTER_MS = 3000;

const count = z.coerce.number().int().min(1).max(64);
const flagsSchema = z.object({
  nodes: z.coerce.number().int().min(2).max(64),
  node: count,
  devices: count,
  device: z.enum(["auto", "cpu", "cuda"]),
  python: z.string().optional(),
});

/**
 * `fulgur join`: lends this machine's devices to a trainer that runs elsewhere with `--engine torch --nodes N`. Its ranks end
 * with the trainer's, whatever ended those, and wait for it to come back.
 */
export function joinCommand(): Command {
  return new Command("join")
    .description("lend this machine's GPUs to a trainer on another one (docs/ENGINES.md)")
    .argument("<host:port>", "the trainer's --rendezvous")
    .requiredOption("--nodes <count>", "machines in all, the trainer's --nodes")
    .requiredOption("--node <number>", "this machine's number among them, from 1; the trainer's is 0")
    .option("--devices <count>", "devices of each machine, the trainer's --devices", "1")
    .addOption(new Option("--device <kind>", "where it runs").choices(["auto", "cpu", "cuda"]).default("auto"))
    .option("--python <path>", "the interpreter (default: FULGUR_PYTHON, .venv/bin/python, python3)")
    .action(async (place: string, given: unknown) => {
      const rendezvous = rendezvousSchema.safeParse(place);
      if (!rendezvous.success)
        throw new FulgurError("ERR_CONFIG", `wanted HOST:PORT, the trainer's --rendezvous; ${place} came`);
      const flags = parsed(given);
      const stop = new AbortController();
      for (const name of ["SIGINT", "SIGTERM"] as const) process.once(name, () => stop.abort());
      await lendUntil(stop.signal, {
        python: pythonPath(flags.python, process.env),
        device: flags.device,
        devices: flags.devices,
        threads: availableParallelism(),
        among: { nodes: flags.nodes, node: flags.node, rendezvous: rendezvous.data },
      });
    });
}

/** @throws FulgurError ERR_PLATFORM, ERR_CONFIG where this machine lacks something: no trainer's return mends that */
async function lendUntil(signal: AbortSignal, options: Parameters<typeof lendRanks>[0]): Promise<void> {
  const { devices, among } = options;
  const first = among.node * devices;
  const names = devices === 1 ? `rank ${first}` : `ranks ${first} to ${first + devices - 1}`;
  while (!signal.aborted) {
    console.error(
      `${names} of ${among.nodes * devices}: waiting for the trainer at ${among.rendezvous}; Ctrl-C ends this`,
    );
    const why = await lendRanks(options, signal);
    if (signal.aborted) return;
    // What doctor would find, no trainer's return mends.
    if (why.code === "ERR_CONFIG" || why.message.includes("npx fulgur doctor")) throw why;
    console.error(`ended: ${why.message.split("\n")[0]}`);
    await sleep(AGAIN_AFTER_MS, undefined, { signal }).catch(() => undefined);
  }
}

/** @throws FulgurError ERR_CONFIG naming the flag */
function parsed(given: unknown): z.infer<typeof flagsSchema> {
  const flags = flagsSchema.safeParse(given);
  if (!flags.success) {
    const [issue] = flags.error.issues;
    throw new FulgurError("ERR_CONFIG", `--${issue?.path.join(".")}: ${issue?.message ?? "not usable"}; see --help`);
  }
  const { node, nodes } = flags.data;
  if (node >= nodes) {
    throw new FulgurError(
      "ERR_CONFIG",
      `--node: wanted 1 to ${nodes - 1}, this machine's number among --nodes ${nodes}; ${node} came`,
    );
  }
  return flags.data;
}
