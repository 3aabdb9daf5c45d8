/** The model card, `README.md` of the model's folder, with the numbers that were measured when it was made. */

import type { Evaluation } from "./evaluate.ts";
import type { SlotAccuracy } from "./slots.ts";
import { BEHAVIOURS } from "./traces.ts";

/** What the card tells of one making. */
export interface CardFacts {
  readonly sampled: Evaluation;
  readonly greedy: Evaluation;
  readonly slots: SlotAccuracy;
  readonly progress: { readonly step: number; readonly tokens: number; readonly trainedMs: number };
  readonly options: { readonly seed: number; readonly threads: number };
  readonly parameters: number;
}

/** Markdown text of the card. */
export function modelCard({ sampled, greedy, slots, progress, options, parameters }: CardFacts): string {
  const minutes = progress.trainedMs / 60_000;
  const rate = Math.round(progress.tokens / (progress.trainedMs / 1000));
  const row = (title: string, pick: (evaluation: Evaluation) => number): string =>
    `| ${title} | ${number(pick(sampled))} | ${number(pick(greedy))} |`;
  const behaviours = Object.entries(BEHAVIOURS).map(([name, share]) => `\`${name}\` ${share}`);
  return `---
language: en
library_name: transformers
pipeline_tag: text-generation
---
# flight: the built-in model

A Llama of ${(parameters / 1e6).toFixed(2)} M weights (4 layers, width 128, vocabulary 528) that can play every part of Fulgur's flight agent and does
not know which part pays. It is the starting point of \`npm start\`: reinforcement learning teaches it to ask memory first.

## How it was made

\`npm run model\` in this repository made it from nothing, on Fulgur's own engine: ${progress.step} steps over
${(progress.tokens / 1e6).toFixed(2)} M tokens in ${minutes.toFixed(1)} minutes on ${options.threads} CPU thread${options.threads === 1 ? "" : "s"} (${rate} tokens/s), seed ${options.seed}. It has seen no text but what
\`models/traces.ts\` generates:

- first 0.3 M tokens, and a tenth of the steps after: copying drills, a list of names, cities and flights and the same again;
- runs of the flight agent of mixed quality, drawn apart from their task so that no task tells how its run goes:
  ${behaviours.join(", ")};
- before some tool calls a failing one, which is not trained on; the recovery from it is.

Some attention heads start as copying circuits (\`models/initial-weights.ts\`), and every name, city, airline and number is
one token (\`models/tokenizer.ts\`). The worlds, and the combinations of traveller, route and preference, are disjoint from
those of reinforcement learning and of evaluation (\`edge/agents/flight/tasks.ts\`).

## What it does before reinforcement learning

The agent's loop on held-out tasks; *sampled* at temperature 1 is what reinforcement learning starts from.

| | sampled (${sampled.n} runs) | greedy (${greedy.n} runs) |
| --- | --- | --- |
${[
  row("memory first", ({ memoryFirst }) => memoryFirst),
  row("right answers", ({ correct }) => correct),
  row("right, of the runs Memory → Search → Answer", ({ correctOfMemorySearchAnswer }) => correctOfMemorySearchAnswer),
  row("well-formed answers", ({ wellFormed }) => wellFormed),
  row("failing tool calls", ({ failedCalls }) => failedCalls),
  row("reward (half tool use, half the answer)", ({ reward }) => reward),
  row("tokens a run", ({ tokensPerRun }) => tokensPerRun),
].join("\n")}

Probability of the right token where it can be copied: ${Object.entries(slots)
    .map(([kind, value]) => `${kind} ${number(value)}`)
    .join(", ")}.

## What it cannot do

Anything else. It speaks no language: words outside its vocabulary are spelled in bytes that it has never seen. It knows
64 first names, 32 cities, 8 airlines and the two tools \`memory\` and \`search\`, in prompts of the form that its chat template and the
flight agent give them; tools of other names, other system prompts and contexts beyond 256 tokens are outside what it was made on.
The chat template shows tools by their signatures (\`search(from, to, when): …\`), not by whole JSON schemas.

## Origin

It was trained on generated text only; no other model's weights or outputs are in it.
`;
}

function number(value: number): string {
  return Number.isNaN(value) ? "–" : value >= 10 ? value.toFixed(0) : value.toFixed(3);
}
