import { z } from "zod";
import type { CallView, RewardView, RolloutDetail } from "#shared/wire.ts";
import { counted } from "./format.ts";
import { becameOf } from "./rollouts-table.ts";
import type { Style } from "./style.ts";

const toolCallSchema = z.object({ function: z.object({ name: z.string(), arguments: z.string() }) });

const messageSchema = z.object({
  role: z.string(),
  content: z.unknown().optional(),
  tool_calls: z.array(toolCallSchema).nullish(),
});
const requestSchema = z.object({ messages: z.array(messageSchema) });

/** One rollout for reading: how it ended, its conversation, its rewards, and each call's numbers. */
export function rolloutDetailText(detail: RolloutDetail, style: Style): string {
  const { rollout, calls, rewards, attempts, batch } = detail;
  const heading = [
    style.bold(rollout.id),
    rollout.agent,
    rollout.mode,
    rollout.status,
    ...(rollout.reward === null ? [] : [`reward ${style.green(rollout.reward.toFixed(3))}`]),
    becameOf(rollout),
    ...(batch === null ? [] : [`batch of step ${batch.step} (${batch.status})`]),
  ];
  const parts = [heading.filter((part) => part !== "").join("  ")];
  if (rollout.outcome !== null) {
    const { status, terminal, correctness, format } = rollout.outcome;
    parts.push(
      style.dim(
        `tool status ${status.toFixed(2)}, terminal ${terminal.toFixed(2)} (correctness ${correctness}, format ${format})`,
      ),
    );
  }
  if (rollout.error !== null) parts.push(style.red(rollout.error));

  for (const { attempt, status, error } of attempts) {
    const own = calls.filter((call) => call.attempt === attempt);
    if (attempts.length > 1)
      parts.push("", style.bold(`attempt ${attempt}: ${status}${error === null ? "" : ` (${error})`}`));
    parts.push("", ...conversation(own, style));
    parts.push("", style.bold(counted(own.length, "call")), ...own.map((call, index) => callLine(call, index, style)));
    const earned = rewards.filter((reward) => reward.attempt === attempt);
    if (earned.length > 0) parts.push("", style.bold("rewards"), ...earned.map((reward) => rewardLine(reward, calls)));
  }
  return parts.join("\n");
}

/** The last call's request holds all turns before it; its answer is the last turn. */
function conversation(calls: readonly CallView[], style: Style): string[] {
  const last = calls.at(-1);
  if (last === undefined) return [style.dim("no calls")];
  const asked = requestSchema.safeParse(last.request).data?.messages ?? [];
  const answered = messageSchema.safeParse(last.response).data;
  return [...asked, ...(answered === undefined ? [] : [answered])].map((message) => {
    const tools = (message.tool_calls ?? []).map((call) =>
      style.cyan(`${call.function.name}(${call.function.arguments})`),
    );
    const said = typeof message.content === "string" ? message.content : contentText(message.content);
    const body = [said, ...tools].filter((text) => text !== "").join(" ");
    return `${style.dim(message.role.padStart(9))}  ${body.replaceAll("\n", `\n${" ".repeat(11)}`)}`;
  });
}

function contentText(content: unknown): string {
  return content === null || content === undefined ? "" : JSON.stringify(content);
}

function callLine(call: CallView, index: number, style: Style): string {
  const { behaviourLogprobs: logprobs } = call;
  const mean =
    logprobs === null || logprobs.length === 0
      ? undefined
      : logprobs.reduce((sum, logprob) => sum + logprob, 0) / logprobs.length;
  return [
    String(index + 1).padStart(3),
    call.version ?? call.modelAsked,
    `${call.promptTokens} → ${call.completionTokens} tokens`,
    ...(mean === undefined ? [] : [`mean logprob ${mean.toFixed(3)}`]),
    `${Math.round(call.latencyMs)} ms`,
    call.finishReason ?? "",
    ...(call.trainable ? [] : [style.yellow("not trainable")]),
    ...(call.error === null ? [] : [style.red(call.error)]),
  ]
    .filter((part) => part !== "")
    .join("  ");
}

function rewardLine({ source, name, value, callId }: RewardView, calls: readonly CallView[]): string {
  const index = calls.findIndex((call) => call.id === callId);
  return `${value.toFixed(3).padStart(7)}  ${source} ${name}${index === -1 ? "" : ` (call ${index + 1})`}`;
}
