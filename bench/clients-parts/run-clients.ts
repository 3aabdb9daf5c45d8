import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { sql } from "drizzle-orm";
import { z } from "zod";
import { connectStore } from "#shared/store/connect.ts";
import { makeBaseVersion } from "../../cli/base-version.ts";
import { startInstallation, type Installation } from "../../cli/installation.ts";
import { LOCAL_TASKS } from "../../cli/local-tasks.ts";
import { startReaper } from "../../cli/reaper.ts";
import { ROOT } from "../../cli/root.ts";
import { makeStateDir, stateDir } from "../../cli/state.ts";
import { createSupervisor } from "../../cli/supervisor.ts";
import { freePortBase } from "../../test/support/installation.ts";
import { descendantsOf } from "../../test/support/processes.ts";
import { until } from "../../test/support/until.ts";
import { type Figures, residentMiB, watchProcesses } from "../ingest-parts/process-figures.ts";
import { startScriptedClients, TIMEOUT_MS, type ClientFigures } from "./scripted-clients.ts";

/**
 * Scripted clients (scripted-clients.ts) under a whole installation with its real trainer, from the first rollout to the end
 * of the run, and what the store then says of every rollout.
 */
export interface ClientsOptions {
  /** At once. */
  readonly clients: number;
  readonly rollouts: number;
  /** After the run, to see what memory is given back. */
  readonly idleMs?: number;
}

export interface ClientsReport {
  readonly clients: Readonly<ClientFigures>;
  readonly rollouts: number;
  /** Ids of those that ended without a disposition, or with one that is none: trained in no batch or two, dropped for no reason. */
  readonly wrong: readonly string[];
  /** `trained`, `dropped/zero_spread` … → how many. */
  readonly dispositions: Readonly<Record<string, number>>;
  /** Calls in the store. */
  readonly calls: number;
  readonly seconds: number;
  /** Of edge, store, inference and trainer, from the first step to the run's end. */
  readonly memory: readonly (Figures & { readonly "MiB after idling": number | null })[];
  /** The trainer's exit code and what it logged. */
  readonly trainer: { readonly code: number | null; readonly stderr: string };
}

const GROUP_SIZE = 8;
const AGENT = "scripted";
/** Commands of the parts whose memory is watched. */
const PARTS = {
  workerd: "workerd serve",
  "edge host": "edge-host",
  sqld: "sqld ",
  inference: "inference/main",
  trainer: "trainer/main",
} as const;

export async function runClients({ clients, rollouts, idleMs = 0 }: ClientsOptions): Promise<ClientsReport> {
  const task = LOCAL_TASKS["flight"];
  if (task === undefined) throw new Error("there is no task flight");
  const folder = await mkdtemp(join(tmpdir(), "fulgur-clients-"));
  const state = stateDir(folder);
  await makeStateDir(state);
  const base = await freePortBase();
  const scripted = await startScriptedClients();
  const supervisor = createSupervisor({ reaper: startReaper(), onEvent: () => undefined });
  try {
    const installation = await startInstallation({
      state,
      ports: { edge: base, inference: base + 1, store: base + 2 },
      task,
      supervisor,
      onListening: () => undefined,
    });
    const { client } = installation;
    const version = await makeBaseVersion({ policy: AGENT, model: task.model, policies: state.policies });
    await client.createPolicy({ name: AGENT, artifact: version.artifact, sha256: version.sha256, kind: "base" });
    await client.putAgent(AGENT, {
      url: scripted.url,
      policy: AGENT,
      alpha: 0,
      concurrency: clients,
      timeout_ms: TIMEOUT_MS,
    });
    await client.createTasks(
      Array.from({ length: 256 }, (_, at) => ({
        id: `${AGENT}-${at}`,
        ...{ agent: AGENT, split: "train" as const, judge: { ...scripted.judge } },
        input: { message: `Get "Ana" from "Oslo" to "Rome" number ${at}.` },
      })),
    );
    const startedAt = performance.now();
    const trainer = startTrainer(folder, installation, { clients, rollouts });
    // Compilers and caches warm up until the first version is out.
    await until("the first step", trainer.hasStepped, 120_000);
    const pids = pidsOf();
    const watch = watchProcesses(pids);
    const end = await trainer.end;
    const figures = watch.stop();
    const seconds = (performance.now() - startedAt) / 1000;
    await pause(idleMs);
    return {
      clients: scripted.figures,
      ...(await audit(installation)),
      seconds,
      memory: figures.map((each) => ({
        ...each,
        "MiB after idling": each.process === "trainer" || idleMs === 0 ? null : residentMiB(pids[each.process] ?? 0),
      })),
      trainer: end,
    };
  } finally {
    await supervisor.stop();
    await scripted.stop();
    await rm(folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

function pidsOf(): Record<string, number> {
  const running = descendantsOf(process.pid);
  return Object.fromEntries(
    Object.entries(PARTS).flatMap(([name, command]) => {
      const found = running.find((each) => each.command.includes(command));
      return found === undefined ? [] : [[name, found.pid]];
    }),
  );
}

interface StartedTrainer {
  /** Or has ended. */
  readonly hasStepped: () => boolean;
  readonly end: Promise<ClientsReport["trainer"]>;
}

function startTrainer(
  folder: string,
  { urls, keys }: Installation,
  { clients, rollouts }: Pick<ClientsOptions, "clients" | "rollouts">,
): StartedTrainer {
  // With one version of staleness, twice a batch is in flight: more than there are clients, so that all of them are busy.
  const groups = Math.ceil(clients / GROUP_SIZE);
  const steps = Math.ceil(rollouts / (groups * GROUP_SIZE));
  const child: ChildProcess = spawn(
    process.execPath,
    [
      ...[join(ROOT, "trainer/main.ts"), "--run", AGENT, "--agent", AGENT, "--policy", AGENT, "--state-dir", folder],
      ...["--edge-url", urls.edge, "--inference-url", urls.inference, "--store-url", urls.store],
      ...["--steps", String(steps), "--groups", String(groups), "--group-size", String(GROUP_SIZE)],
      ...["--eval-tasks", "0", "--lora-rank", "4", "--learning-rate", "1e-5", "--max-staleness", "1"],
    ],
    { env: { ...process.env, FULGUR_STORE_TOKEN: keys.store.readToken }, stdio: ["ignore", "pipe", "pipe"] },
  );
  const texts = { stdout: "", stderr: "" };
  child.stdout?.on("data", (chunk: Buffer) => (texts.stdout += chunk.toString()));
  child.stderr?.on("data", (chunk: Buffer) => (texts.stderr += chunk.toString()));
  return {
    hasStepped: () => child.exitCode !== null || texts.stdout.includes('"event":"step"'),
    end: once(child, "close").then(() => ({ code: child.exitCode, stderr: texts.stderr })),
  };
}

const rows = z.array(z.object({ id: z.string(), what: z.string(), batches: z.int() }));

async function audit({
  urls,
  keys,
}: Installation): Promise<Pick<ClientsReport, "rollouts" | "wrong" | "dispositions" | "calls">> {
  const db = connectStore({ url: urls.store, token: keys.store.readToken, timeoutMs: 30_000 });
  const found = rows.parse(
    await db.all(sql`select r.id, coalesce(r.disposition, 'none') || coalesce('/' || r.drop_reason, '') as what,
        (select count(*) from batch_entries e join batches b on b.id = e.batch_id and b.status = 'trained'
          where e.rollout_id = r.id and r.disposition = 'trained') as batches
      from rollouts r where r.run_id = ${AGENT}`),
  );
  const dispositions: Record<string, number> = {};
  for (const { what } of found) dispositions[what] = (dispositions[what] ?? 0) + 1;
  const [counted] = z.array(z.object({ calls: z.int() })).parse(await db.all(sql`select count(*) as calls from calls`));
  return {
    rollouts: found.length,
    wrong: found
      .filter(({ what, batches }) => !(what === "trained" ? batches === 1 : /^dropped\/./.test(what)))
      .map(({ id }) => id),
    dispositions,
    calls: counted?.calls ?? 0,
  };
}
