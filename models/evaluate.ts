/**
 * Runs the flight agent's loop on a model without any of the services: what a base model can do before it is trained.
 * Prompts are rendered by the model's own chat template in every turn, as the inference endpoint does.
 */

import { InferenceSession } from "onnxruntime-node";
import { makeTask } from "../edge/agents/flight/tasks.ts";
import { makeWorld, SYSTEM, TOOLS, type World } from "../edge/agents/flight/world.ts";
import { readArchitecture, ropeTables, weightShapes } from "../trainer/model/architecture.ts";
import { type ChatTemplate, loadChatTemplate, type Message } from "../trainer/model/chat-template.ts";
import { readModelWeights } from "../trainer/model/safetensors.ts";
import { loadTokenizer, type Tokenizer } from "../trainer/model/tokenizer.ts";
import { hermesToolCalls } from "../trainer/model/tool-call.ts";
import { buildDecodeGraph } from "../trainer/inference/decode-graph.ts";
import { Decoder, type SampledToken } from "../trainer/inference/decoder.ts";
import { packWeights } from "../trainer/inference/packed-weights.ts";

/** One run of the agent. */
export interface Run {
  /** M and S for each tool call, A for an answer, - where none came: `MSA`. */
  readonly path: string;
  readonly failedCalls: number;
  readonly calls: number;
  readonly isCorrect: boolean;
  readonly isWellFormed: boolean;
  /** Tokens of the whole run. */
  readonly tokens: number;
}

/** Means over many runs; shares are from 0 to 1. */
export interface Evaluation {
  readonly n: number;
  readonly memoryFirst: number;
  readonly correct: number;
  readonly wellFormed: number;
  /** Right answers among the runs that went Memory → Search → Answer; NaN where none did. */
  readonly correctOfMemorySearchAnswer: number;
  /** Failing tool calls among all. */
  readonly failedCalls: number;
  /** 0.5·status + 0.5·(0.9·correct + 0.1·well formed), as the trainer's default has it. */
  readonly reward: number;
  readonly tokensPerRun: number;
  /** Runs by path, most frequent first. */
  readonly paths: readonly (readonly [path: string, share: number])[];
}

/** How to evaluate. */
export interface EvaluateOptions {
  /** Tasks of the `val` split, from index 0. */
  readonly count: number;
  /** 0 is greedy. */
  readonly temperature: number;
  readonly seed?: number;
}

const MAX_TURNS = 6;
const MAX_ANSWER_TOKENS = 64;
/** Of the AIR reward: what a good call of each tool is worth. */
const TOOL_WEIGHTS = { memory: 0.3, search: 0.2 } as const;

/** Runs the agent on held-out tasks with the model of a folder. */
export async function evaluate(
  modelDir: string,
  { count, temperature, seed = 0 }: EvaluateOptions,
): Promise<Evaluation> {
  const architecture = await readArchitecture(modelDir);
  const weights = await readModelWeights(modelDir, weightShapes(architecture));
  const [tokenizer, template] = await Promise.all([loadTokenizer(modelDir), loadChatTemplate(modelDir)]);
  if (template === null) throw new Error(`${modelDir} has no chat template`);
  const graph = buildDecodeGraph(architecture, packWeights(architecture, weights), {
    rope: ropeTables(architecture, architecture.contextTokens),
    precision: "fp32",
  });
  const session = await InferenceSession.create(graph, {
    intraOpNumThreads: 1,
    interOpNumThreads: 1,
    logSeverityLevel: 3,
    extra: { session: { intra_op: { allow_spinning: "0" } } },
  });
  const decoder = new Decoder(session, architecture, {
    maxSequences: 64,
    prefixCacheBytes: 64 * 2 ** 20,
    prefillTokensPerStep: 256,
  });
  try {
    const rows = Array.from({ length: count }, (_, index) => new Row(index, tokenizer, template));
    const submit = (row: Row): void =>
      decoder.submit({
        id: row.index,
        prompt: row.prompt(),
        maxTokens: MAX_ANSWER_TOKENS,
        sampling: { temperature, topP: 1, topK: 0, seed: seed * 1_000_003 + row.index * MAX_TURNS + row.turn },
        stopIds: architecture.eosTokenIds,
        topLogprobs: 0,
        adjustments: null,
      });
    rows.forEach(submit);
    const hear = (sampled: SampledToken): void => {
      const row = rows[sampled.id];
      if (row === undefined) return;
      row.push(sampled.token);
      if (sampled.finish !== null && row.endTurn()) submit(row);
    };
    while (await decoder.step(hear));
    return summarise(rows.map((row) => row.result()));
  } finally {
    await decoder.close();
  }
}

/** Means of the runs. */
export function summarise(runs: readonly Run[]): Evaluation {
  const share = (count: number, of = runs.length): number => count / of;
  const straight = runs.filter(({ path }) => path === "MSA");
  const paths = new Map<string, number>();
  for (const { path } of runs) paths.set(path, (paths.get(path) ?? 0) + 1);
  const calls = runs.reduce((sum, run) => sum + run.calls, 0);
  return {
    n: runs.length,
    memoryFirst: share(runs.filter(({ path }) => path.startsWith("M")).length),
    correct: share(runs.filter(({ isCorrect }) => isCorrect).length),
    wellFormed: share(runs.filter(({ isWellFormed }) => isWellFormed).length),
    correctOfMemorySearchAnswer: share(straight.filter(({ isCorrect }) => isCorrect).length, straight.length),
    failedCalls: calls === 0 ? 0 : runs.reduce((sum, run) => sum + run.failedCalls, 0) / calls,
    reward: runs.reduce((sum, run) => sum + rewardOf(run), 0) / runs.length,
    tokensPerRun: runs.reduce((sum, run) => sum + run.tokens, 0) / runs.length,
    paths: [...paths].toSorted((a, b) => b[1] - a[1]).map(([path, number]) => [path, share(number)] as const),
  };
}

/** Failing calls are few in what this is for; one that fails counts here as one that was not made. */
function rewardOf({ path, isCorrect, isWellFormed, failedCalls }: Run): number {
  const used = (path.includes("M") ? TOOL_WEIGHTS.memory : 0) + (path.includes("S") ? TOOL_WEIGHTS.search : 0);
  const status = failedCalls > 0 ? 0 : used / (TOOL_WEIGHTS.memory + TOOL_WEIGHTS.search);
  return 0.5 * status + 0.5 * (0.9 * Number(isCorrect) + 0.1 * Number(isWellFormed));
}

/** One agent in the middle of its run. */
class Row {
  readonly index: number;
  turn = 0;
  readonly #tokenizer: Tokenizer;
  readonly #template: ChatTemplate;
  readonly #world: World;
  readonly #messages: Message[];
  #answer: number[] = [];
  #path = "";
  #calls = 0;
  #failedCalls = 0;
  #said = "";
  #tokens = 0;

  constructor(index: number, tokenizer: Tokenizer, template: ChatTemplate) {
    const { message, world } = makeTask("val", index).input;
    this.index = index;
    this.#tokenizer = tokenizer;
    this.#template = template;
    this.#world = makeWorld(world);
    this.#messages = [
      { role: "system", content: SYSTEM },
      { role: "user", content: message },
    ];
  }

  prompt(): Int32Array {
    const ids = this.#tokenizer.encode(this.#template.render({ messages: this.#messages, tools: TOOLS }, "answer"));
    this.#tokens = ids.length;
    return ids;
  }

  push(token: number): void {
    this.#answer.push(token);
  }

  /** Acts on the turn's text. @returns whether the agent wants another turn */
  endTurn(): boolean {
    const stream = hermesToolCalls.start();
    const parts = [...stream.push(this.#tokenizer.decode(this.#answer)), ...stream.end()];
    this.#tokens += this.#answer.length;
    this.#answer = [];
    this.turn += 1;
    const content = parts.map((part) => (part.type === "content" ? part.text : "")).join("");
    const calls = parts.flatMap((part) => (part.type === "tool_call" ? [part.call] : []));
    if (calls.length === 0) {
      this.#path += "A";
      this.#said = content;
      return false;
    }
    this.#messages.push({
      role: "assistant",
      content,
      toolCalls: calls.map((call, i) => ({ id: `call_${this.turn}_${i}`, ...call })),
    });
    for (const { name, arguments: text } of calls) {
      const result = useTool(this.#world, name, text);
      this.#path += name === "memory" ? "M" : name === "search" ? "S" : "?";
      this.#calls += 1;
      if (result.startsWith('{"error"')) this.#failedCalls += 1;
      this.#messages.push({ role: "tool", content: result });
    }
    return this.turn < MAX_TURNS;
  }

  result(): Run {
    const { judge } = makeTask("val", this.index);
    const answered = new RegExp(judge.answer_pattern, "u").exec(this.#said)?.[1];
    return {
      path: this.#path.endsWith("A") ? this.#path : `${this.#path}-`,
      calls: this.#calls,
      failedCalls: this.#failedCalls,
      isCorrect: answered === judge.expected,
      isWellFormed: new RegExp(judge.format_pattern, "u").test(this.#said),
      tokens: this.#tokens,
    };
  }
}

function useTool(world: World, name: string, argumentsText: string): string {
  const args: unknown = JSON.parse(argumentsText);
  if (name === "memory") return world.memory(args);
  if (name === "search") return world.search(args);
  return '{"error": "unknown tool"}';
}
