import type { Estimate, Evaluation, RunEvent } from "#shared/run-events.ts";
import { duration, percent, words } from "./format.ts";
import type { Screen } from "./screen.ts";
import { stepLine } from "./step-line.ts";

export interface FollowOptions {
  readonly screen: Screen;
  /** What the share of first tool calls is called, such as `memory_first`. */
  readonly firstToolName: string;
}

/** Shows a run on the screen as the trainer tells of it: one line that stays for each step, a live one in between. */
export function followRun({ screen, firstToolName }: FollowOptions): (event: RunEvent) => void {
  const { style } = screen;
  const rewards = new Map<number, number>();
  let steps = 0;

  return (event) => {
    switch (event.event) {
      case "run":
        steps = event.steps;
        screen.line(
          event.resumed_from_step === null
            ? `run ${style.bold(event.run_id)}: ${event.steps} steps of policy ${event.policy}`
            : `run ${style.bold(event.run_id)} goes on after ${event.resumed_from_step} of ${event.steps} steps`,
        );
        break;
      case "evaluating":
        screen.live(style.dim(`evaluation ${event.phase} training  ${event.done}/${event.total} rollouts`));
        break;
      case "evaluation":
        screen.line(evaluationLine(event.phase, event.result, firstToolName, screen));
        break;
      case "progress":
        screen.live(style.dim(`step ${event.step}/${steps}: ${event.doing}  ${event.done}/${event.total}`));
        break;
      case "step": {
        const { step, metrics, seconds_left: secondsLeft } = event;
        const reward = metrics["reward_mean"];
        if (reward !== undefined) rewards.set(step, reward);
        screen.line(
          stepLine(
            { step, steps: event.steps, metrics, secondsLeft },
            { style, columns: screen.columns, rewards: [...rewards.values()], firstToolName },
          ),
        );
        break;
      }
      case "warning":
        screen.line(`${style.yellow("!")} ${event.message}`);
        break;
      case "paused":
        screen.line(`${style.yellow("!")} ${style.bold(event.message)}`);
        break;
      case "done":
        screen.clear();
        break;
    }
  };
}

function evaluationLine(phase: string, result: Evaluation, firstToolName: string, { style }: Screen): string {
  const { reward, first_tool: firstTool, correct, n, failed, wall_s: seconds } = result;
  const number = ({ mean, low, high }: Estimate): string =>
    `${style.bold(mean.toFixed(3))} ${style.dim(`[${low.toFixed(3)}, ${high.toFixed(3)}]`)}`;
  const share = ({ mean, low, high }: Estimate): string =>
    `${style.bold(percent(mean))} ${style.dim(`[${percent(low)}, ${percent(high)}]`)}`;
  return (
    `${style.bold(phase)}: reward ${number(reward)}, ${words(firstToolName)} ${share(firstTool)}, correct ${share(correct)} ` +
    style.dim(`(${n} rollouts of ${result.version}${failed > 0 ? `, ${failed} failed` : ""}, ${duration(seconds)})`)
  );
}
