import { afterAll, beforeAll, expect, test } from "vitest";
import type { EdgeClient } from "#shared/client.ts";
import { bookFlight } from "../../edge/agents/flight/agent.ts";
import { makeTask } from "../../edge/agents/flight/tasks.ts";
import { newFolder, type Folder, type Started } from "../support/installation.ts";

/**
 * That live traffic alone makes an agent better: an application of its own books flights for its users, each of whom comes
 * once and says only whether the flight was the right one. No tasks, no groups, no judge, no tool rewards.
 */

const STEPS = 9;
const SESSIONS_A_STEP = 64;
const USERS_AT_ONCE = 16;

let folder: Folder;
let started: Started;
let client: EdgeClient;
const over = new AbortController();

interface Visit {
  readonly version: number;
  readonly isRight: boolean;
}
const visits: Visit[] = [];

beforeAll(async () => {
  folder = await newFolder();
  started = folder.start([
    ...["--live", "--exit", "--agent", "booker", "--steps", String(STEPS), "--seed", "7"],
    ...["--groups", String(SESSIONS_A_STEP)],
  ]);
  await started.line(/^run .* steps of policy flight/, 120_000);
  client = await folder.client();
  await client.mapModels("booker", { "*": "policy:flight" });
  let next = 0;
  const users = Array.from({ length: USERS_AT_ONCE }, async () => {
    while (!over.signal.aborted) visits.push(await visit((next += 1)));
  });
  // A session that the end of the installation cuts short says nothing.
  const gone = Promise.allSettled(users);
  await started.line(new RegExp(`^step +${STEPS}/${STEPS} `), 400_000);
  over.abort();
  await gone;
}, 480_000);
afterAll(() => folder[Symbol.asyncDispose]());

async function visit(nth: number): Promise<Visit> {
  const { input, judge } = makeTask("train", nth);
  const { rolloutId, token } = await client.createToken({ agent: "booker", mode: "live" });
  if (rolloutId === null) throw new Error("a token for a live session is a rollout's");
  const said = await bookFlight(input, { OPENAI_BASE_URL: `${started.edgeUrl}/v1`, OPENAI_API_KEY: token });
  await client.finishRollout(rolloutId, { result: said });
  const isRight = new RegExp(judge.answer_pattern).exec(said)?.[1] === judge.expected;
  await client.giveFeedback({ rolloutId, value: isRight ? 1 : 0 });
  const { calls } = await client.readRollout(rolloutId);
  // The oldest version that answered in it.
  return { version: Math.min(...calls.map(({ version }) => Number(version?.split("@")[1]))), isRight };
}

const share = (of: readonly Visit[]): number => of.filter(({ isRight }) => isRight).length / of.length;

test("users are given the right flight far more often after a few hundred of them have said what was right", async () => {
  const first = visits.filter(({ version }) => version === 0);
  const last = visits.filter(({ version }) => version >= STEPS - 2);
  expect(first.length).toBeGreaterThanOrEqual(SESSIONS_A_STEP);
  expect(last.length).toBeGreaterThan(SESSIONS_A_STEP / 2);
  // 0.3 at the beginning; by the noise of the two shares, four standard deviations are 0.3.
  expect(share(first)).toBeLessThan(0.5);
  expect(share(last) - share(first)).toBeGreaterThan(0.3);
  expect(await started.exit).toBe(0);
});
