import { setTimeout as pause } from "node:timers/promises";
import { createClient } from "@libsql/client/web";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { allEnded, newFolder, type Folder, type Started } from "../support/installation.ts";
import { until } from "../support/until.ts";

/**
 * kill -9 of each part in the middle of a run, and of the command itself. After every kill training goes on within the
 * time of a bar; at the end the store is asked what became of every acknowledged call and of every rollout.
 */

const STEPS = 14;
/** From the kill to the next process of its kind; the bar for a resume is 15 s. */
const BACK_WITHIN_MS = 15_000;

let folder: Folder;
let started: Started;
/** Ids of calls whose answer a client has seen whole. */
const acknowledged: string[] = [];
const over = new AbortController();
let clients: Promise<unknown>;

beforeAll(async () => {
  folder = await newFolder();
  started = folder.start([
    ...["--exit", "--steps", String(STEPS), "--seed", "3"],
    ...["--groups", "4", "--group-size", "4", "--eval-tasks", "16"],
  ]);
  await started.line(/^run .* steps of policy flight/);
  clients = Promise.all([callOnAndOn(), callOnAndOn()]);
});

afterAll(async () => {
  over.abort();
  await folder[Symbol.asyncDispose]();
});

test.each([
  { at: 2, program: /sqld / },
  // Miniflare starts a new workerd by itself; all others are the supervisor's.
  { at: 3, program: /workerd serve/ },
  { at: 4, program: /edge-host/ },
  { at: 5, program: /inference\/main/ },
  { at: 6, program: /trainer\/main/ },
])(
  "$program is killed in step $at, runs again, and training goes on",
  async ({ at, program }) => {
    const running = () => started.processes().find(({ command }) => program.test(command))?.pid;
    await started.line(stepLine(at), 120_000);
    const victim = await until(`${program} runs`, running);
    const killedAt = performance.now();
    process.kill(victim, "SIGKILL");
    await until(`another ${program} runs`, () => running() !== undefined && running() !== victim, 60_000);
    expect(performance.now() - killedAt).toBeLessThan(BACK_WITHIN_MS);
    await started.line(stepLine(at + 1), 120_000);
  },
  240_000,
);

test("a store that hangs is noticed by the probe's write and started again", async () => {
  await started.line(stepLine(7), 120_000);
  const hung = started.processes().find(({ command }) => /sqld /.test(command))?.pid ?? 0;
  process.kill(hung, "SIGSTOP");
  await started.line(/^✗ the store does not answer/, 90_000);
  const next = await until("another store", () => {
    const pid = started.processes().find(({ command }) => /sqld /.test(command))?.pid;
    return pid === hung ? undefined : pid;
  });
  expect(next).not.toBe(hung);
  expect(await started.line(stepLine(8), 120_000)).toContain("reward");
}, 240_000);

test("the command itself is killed: its parts end, and started again without flags it goes on with the run", async () => {
  await started.line(stepLine(9), 120_000);
  const left = started.processes();
  expect(left.length).toBeGreaterThanOrEqual(5);
  started.child.kill("SIGKILL");
  await allEnded(left);

  started = folder.start([]);
  const resumed = await started.line(/^run .* goes on after \d+ of/, 60_000);
  expect(Number(/goes on after (\d+)/.exec(resumed)?.[1])).toBeGreaterThanOrEqual(9);
  await started.line(/^after: reward/, 240_000);
}, 400_000);

test("no acknowledged call is lost, no rollout is in two batches, and every rollout has one end", async () => {
  over.abort();
  await clients;
  expect(acknowledged.length).toBeGreaterThan(20);
  const ask = await openStore();
  const kept = new Set(await ask("select id from calls", z.object({ id: z.string() }), ({ id }) => id));
  expect(acknowledged.filter((id) => !kept.has(id))).toEqual([]);

  const steps = await ask(
    "select step, version, batch_id from train_steps order by step",
    z.object({ step: z.number(), version: z.number(), batch_id: z.string() }),
    (row) => row,
  );
  expect(steps.map(({ step }) => step)).toEqual(Array.from({ length: STEPS }, (_, index) => index));
  expect(steps.map(({ version }) => version)).toEqual(steps.map(({ step }) => step + 1));
  expect(new Set(steps.map(({ batch_id: batch }) => batch)).size).toBe(STEPS);

  const [twice] = await ask(
    `select count(*) as n from (
       select e.rollout_id from batch_entries e join batches b on b.id = e.batch_id and b.status = 'trained'
       group by e.rollout_id having count(*) > 1)`,
    z.object({ n: z.number() }),
    ({ n }) => n,
  );
  expect(twice).toBe(0);
  const open = await ask(
    "select id from rollouts where mode <> 'live' and status in ('finished', 'failed') and disposition is null",
    z.object({ id: z.string() }),
    ({ id }) => id,
  );
  expect(open).toEqual([]);

  await started.line(/^serving: /);
  started.child.kill("SIGTERM");
  expect(await started.exit).toBe(0);
}, 120_000);

/** One client that calls as fast as it is answered, with fresh keys, through everything. */
async function callOnAndOn(): Promise<void> {
  const client = await folder.client();
  let key: string | undefined;
  while (!over.signal.aborted) {
    try {
      key ??= (
        await client.createToken({ agent: "flight", mode: "live", caps: { maxCalls: 10_000, maxTokens: 1_000_000 } })
      ).token;
      const response = await fetch(`${started.edgeUrl}/v1/chat/completions`, {
        method: "POST",
        headers: { "content-type": "application/json", authorization: `Bearer ${key}` },
        body: JSON.stringify({
          model: "flight",
          messages: [{ role: "user", content: 'Get "Ana" from "Oslo" to "Rome".' }],
          max_tokens: 4,
        }),
        signal: AbortSignal.timeout(20_000),
      });
      const answer: unknown = await response.json();
      if (response.ok) acknowledged.push(z.object({ id: z.string() }).parse(answer).id);
    } catch {
      // It is being killed under us; what counts is what was answered.
    }
    // A pace, not a synchronisation: the clients must not starve training on two cores.
    await pause(150);
  }
}

function stepLine(step: number): RegExp {
  return new RegExp(`^step +${step}/${STEPS} `);
}

/** What the store says, asked with a token that may only read. */
async function openStore() {
  const { store: keys } = await folder.keys();
  const client = createClient({ url: started.storeUrl, authToken: keys.readToken });
  return async <S extends z.ZodType, T>(sql: string, schema: S, map: (row: z.infer<S>) => T): Promise<T[]> => {
    const { rows } = await client.execute(sql);
    return rows.map((row) => map(schema.parse({ ...row })));
  };
}
