import { join } from "node:path";
import type { TaskInput } from "#shared/wire.ts";
import { makeTask } from "../edge/agents/flight/tasks.ts";
import { ROOT } from "./root.ts";

/** What `--task NAME` stands for on one machine: an example agent with its tasks, its policy and its base model. */
export interface LocalTask {
  readonly agent: string;
  readonly policy: string;
  /** Hugging Face folder of the base model. */
  readonly model: string;
  /** The tool whose use as the first one is watched. */
  readonly watchFirstTool: string;
  /** The agent's entry in the edge's AGENTS variable (edge/config.ts). */
  readonly agentConfig: { readonly binding: string; readonly [field: string]: unknown };
  makeTask(split: "train" | "val", index: number): TaskInput;
}

/** The flight agent's policy, AIR weights and limits. */
export const FLIGHT_AGENT = {
  binding: "AGENT_FLIGHT",
  policy: "flight",
  tools: { memory: 0.3, search: 0.2 },
  alpha: 0.5,
  concurrency: 32,
  timeout_ms: 60_000,
  max_attempts: 3,
} as const;

const flight: LocalTask = {
  agent: "flight",
  policy: "flight",
  model: join(ROOT, "models/flight"),
  watchFirstTool: "memory",
  agentConfig: FLIGHT_AGENT,
  makeTask(split, index) {
    const { id, input, judge } = makeTask(split, index);
    return { id, agent: "flight", split, input: { ...input }, judge: { ...judge } };
  },
};

export const LOCAL_TASKS: Readonly<Record<string, LocalTask>> = { flight };

export const TASK_NAMES: readonly string[] = Object.keys(LOCAL_TASKS);
