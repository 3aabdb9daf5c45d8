import { join } from "node:path";
import OpenAI from "openai";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import type { EdgeClient } from "#shared/client.ts";
import { connectStore } from "#shared/store/connect.ts";
import { listPolicies } from "#shared/store/policies.ts";
import { TENANT } from "../../cli/edge-access.ts";
import { newFolder, runCli, type Folder, type Started } from "../support/installation.ts";
import { until } from "../support/until.ts";

/**
 * Training on live traffic with its real parts: an application calls with a long-lived key, a person says what the answers
 * were worth, and the next calls are answered by a version that learned from it. Twice, because the second run must go on
 * where the first one ended.
 */

const SESSIONS_A_STEP = 6;

let folder: Folder;
let started: Started;
let client: EdgeClient;
let openai: OpenAI;
let sessions = 0;

beforeAll(async () => {
  folder = await newFolder();
  started = folder.start(liveFlags(2));
  await started.line(/^run .* 2 steps of policy flight/);
  client = await folder.client();
  openai = await callerFor("flight");
}, 120_000);
afterAll(() => folder[Symbol.asyncDispose]());

/** An application with a long-lived key for one agent. */
async function callerFor(agent: string): Promise<OpenAI> {
  const key = await runCli([
    ...["keys", "create", "--scope", "agent", "--agent", agent, "--quiet"],
    ...["--state-dir", folder.path],
  ]);
  expect(key).toMatchObject({ code: 0 });
  return new OpenAI({ apiKey: key.stdout.trim(), baseURL: `${started.edgeUrl}/v1`, maxRetries: 0 });
}

function liveFlags(steps: number): string[] {
  return [
    ...["--live", "--exit", "--steps", String(steps), "--groups", String(SESSIONS_A_STEP)],
    ...["--max-staleness", "0", "--seed", "5"],
  ];
}

/** A session of one question, ended, and what a person thought of it. */
async function session(value: number): Promise<string> {
  sessions += 1;
  const name = `session-${sessions}`;
  await openai.chat.completions.create(
    {
      model: "flight",
      messages: [{ role: "user", content: `Get "Ana" from "Oslo" to "Rome". (${sessions})` }],
      max_tokens: 24,
    },
    { headers: { "x-fulgur-session": name } },
  );
  const { rollouts } = await client.listRollouts({ mode: "live", status: "running" });
  const id = rollouts[0]?.id ?? "";
  await client.finishRollout(id, { result: "done" });
  expect(await client.giveFeedback({ rolloutId: id, value })).toMatchObject({ accepted: true });
  return id;
}

async function sessionsOf(count: number): Promise<string[]> {
  const ids = [];
  for (let nth = 0; nth < count; nth += 1) ids.push(await session(nth % 2));
  return ids;
}

async function policy() {
  const { store } = await folder.keys();
  const [found] = await listPolicies(connectStore({ url: started.storeUrl, token: store.readToken }), TENANT);
  return found;
}

const versionsOf = async (id: string): Promise<(string | null)[]> =>
  (await client.readRollout(id)).calls.map((call) => call.version);

test("sessions with feedback become a version, which answers the next sessions", { timeout: 180_000 }, async () => {
  const first = await sessionsOf(SESSIONS_A_STEP - 1);
  // One is missing, and training waits for it.
  expect(started.output()).not.toMatch(/^step /m);
  first.push(await session(1));
  await started.line(/^step +1\/2 /, 120_000);
  for (const id of first) {
    expect((await client.readRollout(id)).rollout).toMatchObject({ mode: "live", disposition: "trained" });
    expect(await versionsOf(id)).toEqual(["flight@0"]);
  }
  const second = await sessionsOf(SESSIONS_A_STEP);
  for (const id of second) expect(await versionsOf(id)).toEqual(["flight@1"]);
  await started.line(/^step +2\/2 /, 120_000);
  expect(await started.exit).toBe(0);
});

test(
  "a second run, on another agent's users, begins at the routed version and adds to its line",
  { timeout: 240_000 },
  async () => {
    const before = folder.start(["--no-train"]);
    started = before;
    await before.line(/^serving: /);
    expect(await policy()).toMatchObject({ routeVersion: 2 });
    await client.mapModels("support", { "*": "policy:flight" });
    before.child.kill("SIGTERM");
    expect(await before.exit).toBe(0);

    started = folder.start(["--agent", "support", ...liveFlags(1)]);
    await started.line(/^run .* 1 steps of policy flight/);
    // What the first agent's users say does not count.
    await session(1);
    openai = await callerFor("support");
    const ids = await sessionsOf(SESSIONS_A_STEP);
    for (const id of ids) expect(await versionsOf(id)).toEqual(["flight@2"]);
    await started.line(/^step +1\/1 /, 120_000);
    const { routeVersion, versions } = await until("the route", async () => {
      const found = await policy();
      return found?.routeVersion === 3 ? found : undefined;
    });
    expect(routeVersion).toBe(3);
    expect(versions.map(({ version, parentVersion }) => [version, parentVersion])).toEqual([
      [3, 2],
      [2, 1],
      [1, 0],
      [0, null],
    ]);
    expect(await started.exit).toBe(0);
    const { run_id: run } = z.object({ run_id: z.string() }).parse(await folder.readJson("runs/current.json"));
    expect(await folder.readJson(join("runs", run, "summary.json"))).toMatchObject({ steps: 1, eval_before: null });
  },
);
