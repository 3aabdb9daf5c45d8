import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { sql } from "drizzle-orm";
import { expect } from "vitest";
import { z } from "zod";
import { inferenceClient } from "#shared/inference-client.ts";
import { registerVersion } from "#shared/store/policies.ts";
import { transact } from "#shared/store/statement.ts";
import { ROOT } from "../../cli/root.ts";
import { inferenceFleet } from "../../trainer/release/fleet.ts";
import { startTestEdge, type TestEdge } from "../support/edge.ts";
import type { ServerProcess } from "../support/server-process.ts";
import { until } from "../support/until.ts";
import { writeTinyAdapter } from "../trainer/inference/tiny-model.ts";

/** The built-in model: small, and of a shape that vLLM takes. */
export const MODEL = join(ROOT, "models/flight");
const POLICY = "flight";
const TURNS = 4;
const CLIENTS = 6;
/** How often a client asks again for one answer, as SDKs and the dispatcher between them do. */
const TRIES = 12;

/** One answer as its client got it. */
export interface Answer {
  readonly callId: string;
  readonly rolloutId: string;
  readonly turn: number;
  readonly messages: readonly object[];
  readonly content: string;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly tries: number;
}

/** Two servers behind a real edge, versions published to both as the trainer does, and rollouts that go on meanwhile. */
export interface FleetWorld {
  readonly edge: TestEdge;
  readonly answers: readonly Answer[];
  /** What clients could not get, however often they asked. */
  readonly lost: readonly string[];
  /** What the fleet had to say of its servers. */
  readonly warned: readonly string[];
  /** Writes a version's artifact and registers it, which loads it nowhere. @returns the artifact's folder */
  register(version: number): Promise<string>;
  /** Registers, loads, proves and routes a version, then unloads the one before the last. */
  publish(version: number): Promise<void>;
  /** One answer by this very version, to each of some rollouts. @returns their statuses */
  askFor(version: number, rollouts: number): Promise<readonly number[]>;
  /** Waits for so many more answers by a version. */
  answeredBy(version: number, count: number): Promise<void>;
  /** Names that a server has loaded. */
  loadedAt(server: ServerProcess): Promise<ReadonlySet<string>>;
  /** Whether the edge sends calls to the server, by its place. */
  inService(server: number): Promise<boolean>;
  /** Lets rollouts end; no call is under way then. */
  finish(): Promise<void>;
  stop(): Promise<void>;
}

export async function startFleetWorld(servers: readonly ServerProcess[]): Promise<FleetWorld> {
  const folder = await mkdtemp(join(tmpdir(), "fulgur-fleet-"));
  const edge = await startTestEdge({ inferenceUrl: servers.map(({ url }) => url).join(",") });
  const warned: string[] = [];
  const clients = servers.map(({ url }) => inferenceClient({ baseUrl: url }));
  const fleet = inferenceFleet(clients, { warn: (message) => warned.push(message), patienceMs: 1000 });
  const answers: Answer[] = [];
  const lost: string[] = [];
  const over = new AbortController();

  async function register(version: number): Promise<string> {
    const artifact = join(folder, String(version));
    await writeTinyAdapter(artifact, { name: `${POLICY}@${version}`, modelDir: MODEL, seed: version });
    const row = { tenantId: "default", policy: POLICY, version, kind: "adapter", artifact } as const;
    await transact(edge.store.writer, registerVersion({ ...row, sha256: String(version).repeat(64), createdAt: 1 }));
    return artifact;
  }

  async function oneRollout(number: number): Promise<void> {
    const { id: rolloutId, token } = await edge.rollout("val");
    const messages: { role: string; content: string }[] = [];
    for (let turn = 0; turn < TURNS; turn++) {
      // The number first: no block of a prompt is another rollout's too.
      messages.push({ role: "user", content: `${number} is the rollout, ${turn} the turn: get Ana from Oslo to Rome` });
      const answer = await insistentCall(edge, { rolloutId, token, turn, messages: [...messages] });
      if (answer === undefined) {
        lost.push(`${rolloutId} turn ${turn}`);
        return;
      }
      answers.push(answer);
      messages.push({ role: "assistant", content: answer.content });
    }
  }

  let next = 0;
  const work = Promise.all(
    Array.from({ length: CLIENTS }, async () => {
      while (!over.signal.aborted) {
        // Nothing is published yet.
        if (next === 0 && (await routed(edge)) === 0) await pause(50);
        else await oneRollout(next++);
      }
    }),
  );

  return {
    edge,
    answers,
    lost,
    warned,
    register,
    async publish(version) {
      const name = `${POLICY}@${version}`;
      const startedAt = performance.now();
      const artifact = await register(version);
      await fleet.load(name, artifact);
      await fleet.prove(name);
      await edge.admin.routePolicy(POLICY, version);
      const routedAt = performance.now();
      if (version > 2) await fleet.unload(`${POLICY}@${version - 2}`);
      const times = [routedAt - startedAt, performance.now() - routedAt].map((ms) => ms.toFixed(0));
      console.log(
        `${name}: written, loaded, proven and routed in ${times[0]} ms; the one before the last unloaded in ${times[1]} ms`,
      );
    },
    askFor: (version, rollouts) =>
      Promise.all(
        Array.from({ length: rollouts }, async () => {
          const { token } = await edge.rollout("val");
          const body = { model: `${POLICY}@${version}`, messages: [{ role: "user", content: "again" }], ...SAMPLING };
          const response = await edge.post("/v1/chat/completions", token, body);
          await response.body?.cancel();
          return response.status;
        }),
      ),
    async answeredBy(version, count) {
      const before = await countOf(edge, version);
      await until(
        `${count} more answers by ${POLICY}@${version}`,
        async () => (await countOf(edge, version)) >= before + count,
        60_000,
      );
    },
    loadedAt: (server) => inferenceClient({ baseUrl: server.url }).names(),
    async inService(server) {
      const page = await (await fetch(`${edge.url}/metrics`)).text();
      return page.includes(`fulgur_inference_in_service{server="${server}"} 1\n`);
    },
    async finish() {
      over.abort();
      await work;
    },
    async stop() {
      over.abort();
      await work.catch(() => undefined);
      await edge.stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** Every answer has its record, and each is what its version says to its prompt. */
export async function expectTrueAnswers(world: FleetWorld, servers: readonly ServerProcess[]): Promise<void> {
  const { edge, answers } = world;
  const rows = await callRows(edge);
  const byId = new Map(rows.map((row) => [row.id, row]));
  const unrecorded = answers.filter(({ callId }) => byId.get(callId)?.http_status !== 200);
  expect(unrecorded).toEqual([]);
  // Answered in time or refused: what failed was never another version's answer.
  expect(rows.filter(({ error }) => error?.includes("answered as") === true)).toEqual([]);

  const versions = [...new Set(answers.map(({ callId }) => byId.get(callId)?.version ?? -1))];
  expect(versions.length).toBeGreaterThan(2);
  const artifacts = new Map((await artifactRows(edge)).map(({ version, artifact }) => [version, artifact]));
  const clients = servers.map(({ url }) => inferenceClient({ baseUrl: url }));
  for (const client of clients) {
    for (const version of versions) await client.load(`${POLICY}@${version}`, artifacts.get(version) ?? "");
  }
  // A later turn's prompt has the tokens that its server remembers of the turns before, which another may not (trainer/inference/continuation.ts).
  const begun = answers.filter(({ turn }) => turn === 0);
  const sample = begun.filter((_, at) => at % Math.max(1, Math.floor(begun.length / 40)) === 0);
  let told = 0;
  for (const { callId, messages, content } of sample) {
    const version = byId.get(callId)?.version ?? -1;
    const said = await Promise.all(servers.map((server) => whatIsSaid(server, version, messages)));
    expect(said).toContain(content);
    const other = versions.find((each) => each !== version) ?? -1;
    const otherwise = await Promise.all(servers.map((server) => whatIsSaid(server, other, messages)));
    if (!otherwise.includes(content)) told++;
  }
  // Versions differ in what they say, or the check above would say nothing.
  expect(told).toBeGreaterThan(sample.length * 0.8);
}

/** Tokens of the built-in endpoint's cache blocks (trainer/inference/prefix-cache.ts). */
const BLOCK_TOKENS = 32;

/**
 * The share of later turns whose prompt was cached as far as that of the turn before goes, in whole blocks, among those that
 * the same version answered: only the server that answered the turn before has it.
 */
export async function stickyShare({ edge, answers }: FleetWorld): Promise<{ share: number; turns: number }> {
  const versionOf = new Map((await callRows(edge)).map(({ id, version }) => [id, version]));
  const turns = answers.flatMap((answer) => {
    const before = answers.find(({ rolloutId, turn }) => rolloutId === answer.rolloutId && turn === answer.turn - 1);
    if (before === undefined || versionOf.get(before.callId) !== versionOf.get(answer.callId)) return [];
    const blocks = Math.floor(before.promptTokens / BLOCK_TOKENS);
    return blocks === 0 ? [] : [answer.cachedTokens >= blocks * BLOCK_TOKENS];
  });
  return { share: turns.filter(Boolean).length / turns.length, turns: turns.length };
}

async function whatIsSaid(server: ServerProcess, version: number, messages: readonly object[]): Promise<string> {
  const response = await fetch(`${server.url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model: `${POLICY}@${version}`, messages, ...SAMPLING }),
  });
  return answerSchema.parse(await response.json()).choices[0]?.message.content ?? "";
}

const SAMPLING = { temperature: 0, max_tokens: 6 };

const answerSchema = z.looseObject({
  choices: z.array(z.looseObject({ message: z.looseObject({ content: z.string().nullable() }) })),
  usage: z.looseObject({
    prompt_tokens: z.number(),
    prompt_tokens_details: z.looseObject({ cached_tokens: z.number().nullish() }).nullish(),
  }),
});

interface Turn {
  readonly rolloutId: string;
  readonly token: string;
  readonly turn: number;
  readonly messages: readonly object[];
}

/** Asks until it is answered; undefined when it never is. */
async function insistentCall(edge: TestEdge, { rolloutId, token, turn, messages }: Turn): Promise<Answer | undefined> {
  for (let tries = 1; tries <= TRIES; tries++) {
    const response = await edge.post("/v1/chat/completions", token, { model: POLICY, messages, ...SAMPLING });
    if (response.ok) {
      const { choices, usage } = answerSchema.parse(await response.json());
      return {
        callId: response.headers.get("x-fulgur-call") ?? "",
        rolloutId,
        turn,
        messages,
        content: choices[0]?.message.content ?? "",
        promptTokens: usage.prompt_tokens,
        cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
        tries,
      };
    }
    await response.body?.cancel();
    if (response.status < 500 && response.status !== 429) return undefined;
    await pause(200);
  }
  return undefined;
}

const callRow = z.object({
  id: z.string(),
  version: z.number().nullable(),
  http_status: z.number(),
  error: z.string().nullable(),
});

async function callRows(edge: TestEdge): Promise<z.infer<typeof callRow>[]> {
  return z
    .array(callRow)
    .parse(await edge.store.db.all(sql`select id, policy_version as version, http_status, error from calls`));
}

async function artifactRows(edge: TestEdge): Promise<{ version: number; artifact: string }[]> {
  return z
    .array(z.object({ version: z.number(), artifact: z.string() }))
    .parse(await edge.store.db.all(sql`select version, artifact from policy_versions where policy = ${POLICY}`));
}

async function countOf(edge: TestEdge, version: number): Promise<number> {
  const rows = await edge.store.db.all(
    sql`select count(*) as n from calls where policy_version = ${version} and http_status = 200`,
  );
  return z.array(z.object({ n: z.number() })).parse(rows)[0]?.n ?? 0;
}

async function routed(edge: TestEdge): Promise<number> {
  const rows = await edge.store.db.all(sql`select route_version as n from policies where name = ${POLICY}`);
  return z.array(z.object({ n: z.number() })).parse(rows)[0]?.n ?? 0;
}
