import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { z } from "zod";
import { messageOf } from "#shared/errors.ts";
import type { CallView } from "#shared/wire.ts";
import { ROOT } from "../../cli/root.ts";
import { makeTask } from "../../edge/agents/flight/tasks.ts";
import { makeWorld, SYSTEM, WHENS } from "../../edge/agents/flight/world.ts";
import { startTestEdge, type TestEdge } from "../../test/support/edge.ts";
import { buildTrajectory, type RecordedCall } from "../../trainer/batch/trajectories.ts";
import { parseInferenceConfig } from "../../trainer/inference/config.ts";
import { startInferenceServer } from "../../trainer/inference/server.ts";
import { writeContraryModel } from "./contrary-model.ts";
import { FRAMEWORKS, type AgentFramework, type AgentTool } from "./frameworks.ts";

/** Rollouts of the flight agent by each framework, through a whole edge, and how their calls join into training rows. */

export const MODELS = ["flight", "contrary"] as const;

export interface MergeCase {
  readonly framework: string;
  /** The built-in model, or one that writes its tool calls as no client gives them back (contrary-model.ts). */
  readonly model: (typeof MODELS)[number];
  /** Whether the endpoint continues conversations from the ids that it sampled. */
  readonly isExact: boolean;
  readonly rollouts: number;
  readonly calls: number;
  /** Calls after the first of their rollout. */
  readonly mergeable: number;
  /** Of these, those whose prompt begins with all tokens of the calls before. */
  readonly merged: number;
  /** Calls that could not be trained on, whatever their prompts are. */
  readonly skipped: number;
  /** Tokens of the training rows that the calls make. */
  readonly rowTokens: number;
  readonly promptTokens: number;
  /** Of these, those that the endpoint had in its prefix cache. */
  readonly cachedTokens: number;
  /** Errors with which a framework ended a run before its last turn; the calls until then count. */
  readonly failed: readonly string[];
}

export interface MergeOptions {
  /** By model, of each framework; every other one is streamed. A model without any is left out. */
  readonly rollouts: Readonly<Partial<Record<MergeCase["model"], number>>>;
}

const MAX_TURNS = 6;
const MODEL = "flight@0";
const answers = {
  memory: z.object({ traveller: z.string() }),
  search: z.object({ from: z.string(), to: z.string(), when: z.enum(WHENS) }),
};

/** Each model both ways, with an endpoint of its own, whose prefix cache is then empty. */
export async function measureMerges({ rollouts }: MergeOptions): Promise<readonly MergeCase[]> {
  const folder = await mkdtemp(join(tmpdir(), "fulgur-merge-"));
  try {
    const flight = join(ROOT, "models/flight");
    const contrary = join(folder, "contrary");
    await writeContraryModel(contrary, flight);
    const cases: MergeCase[] = [];
    for (const model of MODELS) {
      for (const isExact of [true, false]) {
        const count = rollouts[model] ?? 0;
        if (count === 0) continue;
        const measured = await withEndpoint({ flight, contrary }[model], isExact, (edge, inferenceUrl) =>
          measureAll({ edge, inferenceUrl, rollouts: count }),
        );
        cases.push(...measured.map((each) => ({ ...each, model, isExact })));
      }
    }
    return cases;
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function withEndpoint<T>(
  model: string,
  isExact: boolean,
  use: (edge: TestEdge, inferenceUrl: string) => Promise<T>,
): Promise<T> {
  const settings = { model, servedModelName: MODEL, port: 0, prefixCacheMb: 256 };
  const inference = await startInferenceServer(
    parseInferenceConfig({ ...settings, ...(isExact ? {} : { continuationTokens: 0 }) }),
    {
      fatal: (error) => {
        throw error;
      },
    },
  );
  const edge = await startTestEdge({ inferenceUrl: inference.url });
  try {
    return await use(edge, inference.url);
  } finally {
    await edge.stop();
    await inference.close();
  }
}

type Measured = Omit<MergeCase, "model" | "isExact">;
interface Place {
  readonly edge: TestEdge;
  readonly inferenceUrl: string;
  readonly rollouts: number;
}
/** With tasks of its own: what is cached of another's prompts is the system's words, and no more. */
type OwnPlace = Place & { readonly firstTask: number };

async function measureAll(place: Place): Promise<readonly Measured[]> {
  const measured: Measured[] = [];
  for (const [at, framework] of FRAMEWORKS.entries()) {
    measured.push(await measure(framework, { ...place, firstTask: at * place.rollouts }));
  }
  return measured;
}

async function measure(
  { name, run }: AgentFramework,
  { edge, inferenceUrl, rollouts, firstTask }: OwnPlace,
): Promise<Measured> {
  const before = await cacheOf(inferenceUrl);
  const totals = { calls: 0, mergeable: 0, merged: 0, skipped: 0, rowTokens: 0 };
  const failed: string[] = [];
  for (let at = 0; at < rollouts; at++) {
    const { input } = makeTask("val", firstTask + at);
    const { id, token } = await edge.rollout("train");
    const error = await run({
      ...{ baseUrl: `${edge.url}/v1`, origin: edge.url, apiKey: token, model: MODEL, stream: at % 2 === 1 },
      ...{ system: SYSTEM, question: input.message, maxTurns: MAX_TURNS, tools: toolsOf(input.world) },
    }).then(() => undefined, messageOf);
    const { calls } = await edge.admin.readRollout(id);
    // At the last turn some frameworks throw.
    if (error !== undefined && calls.length < MAX_TURNS) failed.push(error);
    const { transitions, rows, merges, breaks } = buildTrajectory(calls.map(recordedCall));
    totals.calls += calls.length;
    totals.skipped += calls.length - transitions.length;
    totals.merged += merges;
    totals.rowTokens += rows.reduce((sum, { tokens }) => sum + tokens.length, 0);
    totals.mergeable += merges + Object.values(breaks).reduce((sum, count) => sum + count, 0);
  }
  const after = await cacheOf(inferenceUrl);
  return {
    framework: name,
    rollouts,
    ...totals,
    promptTokens: after.queries - before.queries,
    cachedTokens: after.hits - before.hits,
    failed,
  };
}

/** As the trainer has it. */
function recordedCall(call: CallView): RecordedCall {
  const { id: callId, version, promptTokenIds, responseTokenIds, behaviourLogprobs, trainable } = call;
  return {
    callId,
    promptTokenIds: promptTokenIds === null ? null : Int32Array.from(promptTokenIds),
    responseTokenIds: responseTokenIds === null ? null : Int32Array.from(responseTokenIds),
    behaviourLogprobs: behaviourLogprobs === null ? null : Float32Array.from(behaviourLogprobs),
    policyVersion: version === MODEL ? 0 : null,
    trainable,
  };
}

function toolsOf(seed: number): AgentTool[] {
  const world = makeWorld(seed);
  return [
    {
      name: "memory",
      description: "what a traveller prefers",
      parameters: answers.memory,
      run: (given) => world.memory(given),
    },
    {
      name: "search",
      description: "flights at a time of day",
      parameters: answers.search,
      run: (given) => world.search(given),
    },
  ];
}

/** Prompt tokens that the endpoint has looked for in its prefix cache, and found. */
async function cacheOf(url: string): Promise<{ readonly queries: number; readonly hits: number }> {
  const text = await (await fetch(`${url}/metrics`)).text();
  const sumOf = (name: string): number =>
    [...text.matchAll(new RegExp(`^${name}(?:\\{.*\\})? (\\S+)$`, "gm"))].reduce(
      (sum, found) => sum + Number(found[1]),
      0,
    );
  return { queries: sumOf("vllm:prefix_cache_queries_total"), hits: sumOf("vllm:prefix_cache_hits_total") };
}
