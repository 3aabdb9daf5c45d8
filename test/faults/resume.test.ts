import { createHash } from "node:crypto";
import { mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sql } from "drizzle-orm";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { connectStore, type StoreDb } from "#shared/store/connect.ts";
import { mintToken } from "#shared/tokens.ts";
import { makeBaseVersion } from "../../cli/base-version.ts";
import { startInstallation, type Installation } from "../../cli/installation.ts";
import { LOCAL_TASKS } from "../../cli/local-tasks.ts";
import { startReaper } from "../../cli/reaper.ts";
import { makeStateDir, stateDir, type StateDir } from "../../cli/state.ts";
import { createSupervisor, type Supervisor } from "../../cli/supervisor.ts";
import { freePortBase } from "../support/installation.ts";
import { startSeededAgent, type SeededAgent } from "../support/seeded-agent.ts";
import { runTrainer, type TrainerEnd } from "../support/trainer-process.ts";

/**
 * The trainer is killed with SIGKILL at a place (trainer/fault-point.ts) in the middle of a run and started again: each
 * rollout has been trained on at most once and has its disposition, the tasks were the same in the same order, and the
 * weights of every version are bit for bit those of a run that nobody killed.
 *
 * All parts are the real ones: store, edge, inference and the trainer's own process. What makes two runs comparable is the
 * agent, which calls the real policy with a seed made of the rollout's place in its run: a seeded answer depends on nothing
 * but prompt and weights (test/trainer/inference/decoder.test.ts), and with `--sync` the weights are those of the step.
 * With older samples allowed, two runs differ by which version answered when, killed or not.
 */

const STEPS = 3;
const TASKS = 12;

/** Boundaries of a step and moments inside it, in their order; where no step is named, step 2. */
const PLACES = [
  // A run begins: nothing but its name is there, then its first checkpoint.
  "after edge.putRun in step 1",
  "after folder.listed in step 1",
  "after folder.renamed in step 1",
  // Rollouts are asked for, waited for, claimed, read and sifted.
  "before edge.createRollouts",
  "during edge.createRollouts",
  "after edge.createRollouts",
  "after records.waitingGroups",
  "before edge.claimBatch",
  "during edge.claimBatch",
  "after edge.claimBatch",
  "after records.batchRollouts in step 2, pass 2",
  "before edge.dropRollouts",
  "after edge.dropRollouts",
  // The update: two optimizer steps, the second of which scores first.
  "during engine.score",
  "after engine.score",
  "before engine.backward",
  "during engine.backward",
  "after engine.backward",
  "during engine.step",
  "after engine.step",
  "after engine.step in step 2, pass 2",
  // The checkpoint: half written, written, listed, under its name; then an old one goes.
  "during engine.save",
  "after engine.save",
  "after folder.filled",
  "after folder.listed",
  "after folder.renamed",
  "after folder.retired in step 3",
  // The version: half written, written, listed, under its name, registered, loaded, proven, routed.
  "after records.lastVersion",
  "during engine.exportAdapter",
  "after engine.exportAdapter",
  "after folder.listed in step 2, pass 2",
  "after folder.renamed in step 2, pass 2",
  "before edge.markTrained",
  "during edge.markTrained",
  "after edge.markTrained",
  "during inference.load",
  "after inference.load",
  "after inference.prove",
  "during edge.routePolicy",
  "after edge.routePolicy",
  // The step is over: an old version leaves inference, another one the disk.
  "during inference.unload in step 3",
  "after event.step",
  // The run ends.
  "before edge.putRun in step 4",
  "after edge.putRun in step 4",
].map((place) => (place.includes(" in step ") ? place : `${place} in step 2`));

/** Runs that go on side by side: a trainer of so small a model mostly waits. */
const LANES = 2;

let folder: string;
let state: StateDir;
let supervisor: Supervisor;
let installation: Installation;
let agent: SeededAgent;
let db: StoreDb;
let model: string;
let unkilled: History;

beforeAll(async () => {
  const task = LOCAL_TASKS["flight"];
  if (task === undefined) throw new Error("there is no task flight");
  model = task.model;
  folder = await mkdtemp(join(tmpdir(), "fulgur-resume-"));
  state = stateDir(folder);
  await makeStateDir(state);
  const base = await freePortBase();
  agent = await startSeededAgent();
  supervisor = createSupervisor({ reaper: startReaper(), onEvent: () => undefined });
  installation = await startInstallation({
    state,
    ports: { edge: base, inference: base + 1, store: base + 2 },
    task,
    supervisor,
    onListening: () => undefined,
  });
  db = connectStore({ url: installation.urls.store, token: installation.keys.store.readToken, timeoutMs: 10_000 });
  await prepare("unkilled");
  const { code, stderr } = await train("unkilled");
  if (code !== 0) throw new Error(`the run that nobody kills ended with ${code}: ${stderr}`);
  unkilled = await historyOf("unkilled");
}, 120_000);

afterAll(async () => {
  await supervisor.stop();
  await agent.stop();
  await rm(folder, { recursive: true, force: true, maxRetries: 5 });
}, 60_000);

test("the run that nobody kills moves the weights at each step, trains every rollout once or says why not, and drops a group in step 2", () => {
  expect(new Set(Object.values(unkilled.weights)).size).toBe(STEPS);
  expect(unkilled.steps).toEqual([0, 1, 2].map((step) => ({ step, version: step + 1 })));
  expect(unkilled.routed).toBe(STEPS);
  for (const { id, disposition, trained } of unkilled.rollouts) {
    expect({ id, disposition, trained }).toEqual(
      disposition === "trained"
        ? { id, disposition, trained: 1 }
        : { id, disposition: "dropped/zero_spread", trained: 0 },
    );
  }
  expect(unkilled.rollouts.some(({ step, disposition }) => step === 1 && disposition !== "trained")).toBe(true);
});

const lanes: Promise<unknown>[] = Array.from({ length: LANES }, () => Promise.resolve());

test.concurrent.for(PLACES.map((place, at) => ({ place, run: `r${String(at).padStart(2, "0")}`, lane: at % LANES })))(
  "killed $place",
  { timeout: 300_000 },
  async ({ place, run, lane }, { expect }) => {
    const turn = (lanes[lane] ?? Promise.resolve()).then(async () => {
      await prepare(run);
      const killed = await train(run, { fault: place });
      const resumed = await train(run);
      return { killed, resumed, history: await historyOf(run) };
    });
    // The next one has its turn whatever becomes of this one.
    lanes[lane] = turn.catch(() => undefined);
    const { killed, resumed, history } = await turn;
    expect(killed, killed.stderr).toMatchObject({ code: null, signal: "SIGKILL" });
    expect(resumed, resumed.stderr).toMatchObject({ code: 0, signal: null });
    expect(history).toEqual(unkilled);
  },
);

test("full weights and their moments come back to the bit too, killed once in each step", async () => {
  const flags = ["--method", "full"];
  await prepare("whole");
  expect(await train("whole", { flags })).toMatchObject({ code: 0 });
  await prepare("struck");
  for (const fault of [
    "during engine.save in step 1",
    "during engine.exportWeights in step 2",
    "after edge.markTrained in step 3",
  ]) {
    expect(await train("struck", { fault, flags })).toMatchObject({ signal: "SIGKILL" });
  }
  expect(await train("struck", { flags })).toMatchObject({ code: 0 });
  const struck = await historyOf("struck");
  expect(new Set(Object.values(struck.weights)).size).toBe(STEPS);
  expect(struck).toEqual(await historyOf("whole"));
}, 120_000);

test("killed again and again with older samples allowed, a run asks for the same tasks in their order and trains on none twice", async () => {
  await prepare("late");
  const flags = ["--sync=false", "--max-staleness", "1", "--steps", "5"];
  for (const fault of [
    "after edge.createRollouts in step 2",
    "after edge.claimBatch in step 2",
    "during edge.markTrained in step 3",
    "after folder.renamed in step 4",
  ]) {
    expect(await train("late", { fault, flags })).toMatchObject({ signal: "SIGKILL" });
  }
  expect(await train("late", { flags })).toMatchObject({ code: 0 });
  const { rollouts, steps } = await historyOf("late");
  expect(steps).toEqual([0, 1, 2, 3, 4].map((step) => ({ step, version: step + 1 })));
  expect(rollouts.filter(({ trained }) => trained > 1)).toEqual([]);
  expect(rollouts.filter(({ disposition }) => disposition === "none")).toEqual([]);
  const tasksOf = (of: readonly RolloutHistory[]) => [...new Set(of.map(({ task }) => task))];
  const order = tasksOf(unkilled.rollouts);
  expect(tasksOf(rollouts).slice(0, order.length)).toEqual(order);
}, 120_000);

test("a run that keeps few versions removes the others' folders: they answer no more, and their numbers are never taken again", async () => {
  await prepare("few");
  const flags = ["--keep-versions", "1", "--steps", "5"];
  // Killed between a version's retirement and the removal of its folder, which the next step then makes up for.
  expect(await train("few", { flags, fault: "after edge.retireVersions in step 5" })).not.toMatchObject({ code: 0 });
  expect(await train("few", { flags })).toMatchObject({ code: 0 });
  const folders = async (): Promise<string[]> => (await readdir(join(state.policies, "few"))).toSorted();
  const kept = await folders();
  expect(kept).toEqual(expect.arrayContaining(["0", "4", "5"]));
  const gone = ["1", "2", "3"].filter((version) => !kept.includes(version));
  // The newest two, which may sample still, the base, and the best one of those before.
  expect(gone.length).toBeGreaterThanOrEqual(2);

  const { keys, urls } = installation;
  const { token } = await mintToken(keys.edge, { tenantId: "default", scopes: ["inference"] });
  const ask = async (version: string) => {
    const response = await fetch(`${urls.inference}/v1/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${token}` },
      body: JSON.stringify({ model: `few@${version}`, prompt: "a", max_tokens: 1 }),
    });
    return { status: response.status, said: await response.text() };
  };
  expect((await ask("5")).status).toBe(200);
  const policies = await installation.client.listPolicies();
  const versions = policies.find(({ name }) => name === "few")?.versions ?? [];
  const retired = versions.flatMap(({ version, retiredAt }) => (retiredAt === null ? [] : [String(version)]));
  expect(retired.toSorted()).toEqual(gone);
  for (const version of gone) {
    expect(await ask(version)).toMatchObject({
      status: 404,
      said: expect.stringContaining("is gone: the trainer keeps"),
    });
  }
  expect(await train("few-again", { flags: ["--policy", "few", "--agent", "few", "--steps", "1"] })).toMatchObject({
    code: 0,
  });
  expect(await folders()).toEqual([...kept, "6"].toSorted());
}, 120_000);

/** What a run leaves, without its name: two runs that did the same leave the same. */
interface History {
  /** Version → sha256 of its weights. */
  readonly weights: Readonly<Record<number, string>>;
  /** The last checkpoint's engine: file → sha256. */
  readonly engine: Readonly<Record<string, string>>;
  readonly routed: number;
  readonly steps: readonly { readonly step: number; readonly version: number }[];
  /** In the order of their ids, which is that in which they were asked for. */
  readonly rollouts: readonly RolloutHistory[];
}

interface RolloutHistory {
  readonly id: string;
  readonly task: string;
  readonly reward: number | null;
  /** With the reason of a dropped one; `none` is what no rollout may end with. */
  readonly disposition: string;
  /** Of the batch that claimed it; null for none. */
  readonly step: number | null;
  /** Batches that trained on it. */
  readonly trained: number;
  /** sha256 of its calls' token ids and log-probabilities. */
  readonly sampled: string;
}

/** An agent, a policy and tasks of its own, so that the run finds nothing of another one. */
async function prepare(run: string): Promise<void> {
  const { client } = installation;
  const base = await makeBaseVersion({ policy: run, model, policies: state.policies });
  await client.createPolicy({ name: run, artifact: base.artifact, sha256: base.sha256, kind: "base" });
  await client.putAgent(run, { url: agent.url, policy: run, alpha: 0 });
  await client.createTasks(
    Array.from({ length: TASKS }, (_, at) => ({
      id: `${run}-${String(at).padStart(2, "0")}`,
      ...{ agent: run, split: "train" as const, judge: { ...agent.judge } },
      input: { message: `Get "Ana" from "Oslo" to "Rome" number ${at}.`, always: at % 4 === 0 },
    })),
  );
}

/** @param flags put after the others, and so in place of theirs */
function train(
  run: string,
  { fault = "", flags = [] }: { readonly fault?: string; readonly flags?: readonly string[] } = {},
): Promise<TrainerEnd> {
  const { urls, keys } = installation;
  return runTrainer(
    [
      ...["--run", run, "--agent", run, "--policy", run, "--state-dir", folder],
      ...["--edge-url", urls.edge, "--inference-url", urls.inference, "--store-url", urls.store],
      ...["--steps", String(STEPS), "--sync", "--groups", "2", "--group-size", "4", "--refill-groups", "8"],
      ...["--updates-per-batch", "2", "--eval-tasks", "0", "--poll-ms", "20", "--lora-rank", "4"],
      ...["--seed", "3", "--keep-checkpoints", "1"],
      ...flags,
    ],
    {
      FULGUR_STORE_TOKEN: keys.store.readToken,
      FULGUR_FAULT_AT: fault,
      // Some ninety starts of the same program.
      NODE_COMPILE_CACHE: join(folder, "compiled"),
    },
  );
}

async function historyOf(run: string): Promise<History> {
  const versions = versionRows.parse(
    await db.all(sql`select version, step, artifact from policy_versions where policy = ${run} and version > 0
      order by version`),
  );
  const weights = await Promise.all(
    versions.map(async ({ version, artifact }) => {
      const file = (await readdir(artifact)).find((name) => name.endsWith(".safetensors"));
      return [version, await sha256Of(join(artifact, file ?? "no weights"))];
    }),
  );
  const [policy] = z
    .array(z.object({ route_version: z.number() }))
    .parse(await db.all(sql`select route_version from policies where name = ${run}`));
  const checkpoints = join(state.runs, run, "checkpoints");
  const engine = join(checkpoints, (await readdir(checkpoints)).toSorted().at(-1) ?? "", "engine");
  const rollouts = rolloutRows.parse(
    await db.all(sql`
      select r.id, r.task_id as task, r.reward, coalesce(r.disposition || coalesce('/' || r.drop_reason, ''), 'none') as
        disposition, max(b.step) as step, count(distinct case when b.status = 'trained' and r.disposition = 'trained'
        then b.id end) as trained, (select group_concat(hex(c.response_token_ids) || hex(c.behaviour_logprobs))
        from calls c where c.rollout_id = r.id) as sampled
      from rollouts r left join batch_entries e on e.rollout_id = r.id left join batches b on b.id = e.batch_id
      where r.run_id = ${run} group by r.id order by r.id`),
  );
  return {
    weights: Object.fromEntries(weights),
    engine: Object.fromEntries(
      await Promise.all(
        (await readdir(engine))
          .filter((file) => file.endsWith(".safetensors"))
          .map(async (file) => [file, await sha256Of(join(engine, file))]),
      ),
    ),
    routed: policy?.route_version ?? -1,
    steps: versions.map(({ step, version }) => ({ step, version })),
    rollouts: rollouts.map((rollout) => ({
      ...rollout,
      id: rollout.id.replace(run, ""),
      task: rollout.task.replace(run, ""),
      sampled: createHash("sha256").update(rollout.sampled).digest("hex"),
    })),
  };
}

const versionRows = z.array(z.object({ version: z.number(), step: z.number(), artifact: z.string() }));
const rolloutRows = z.array(
  z.object({
    id: z.string(),
    task: z.string(),
    reward: z.number().nullable(),
    disposition: z.string(),
    step: z.number().nullable(),
    trained: z.number(),
    sampled: z.string(),
  }),
);

async function sha256Of(path: string): Promise<string> {
  return createHash("sha256")
    .update(await readFile(path))
    .digest("hex");
}
