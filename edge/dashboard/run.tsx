import { useMemo } from "preact/hooks";
import { evaluationSchema, type Evaluation } from "#shared/run-events.ts";
import type { RunView, TrainStepView } from "#shared/wire.ts";
import { Chart, type Line } from "./chart.tsx";
import { percent } from "./format.ts";

interface RunProps {
  readonly run: RunView;
  readonly steps: readonly TrainStepView[];
}

/** The run's curves: what it earns, what it does first, and the numbers that would warn. */
export function Run({ run, steps }: RunProps) {
  const before = evaluation(run.evalBefore);
  const after = evaluation(run.evalAfter);
  const firstTool = watchedTool(run.config);
  const last = steps.at(-1);

  const axis = useMemo(() => {
    // Batches count from 0 and each makes the next version: its point stands at the version that it made.
    const trained = steps.map((step) => step.step + 1);
    const end = trained.at(-1) ?? 0;
    return [...new Set([0, ...trained, ...(after === undefined ? [] : [end + 1])])];
  }, [steps, after]);
  const series = (name: string): (number | null)[] => {
    const byStep = new Map(steps.map((step) => [step.step + 1, step.metrics[name] ?? null]));
    return axis.map((step) => byStep.get(step) ?? null);
  };
  const marks = (pick: (result: Evaluation) => number): (number | null)[] =>
    axis.map((step, index) =>
      index === 0 && step === 0 && before !== undefined
        ? pick(before)
        : index === axis.length - 1 && after !== undefined
          ? pick(after)
          : null,
    );
  const one = (label: string, name: string): Line[] => [{ label, colour: "#57534e", values: series(name) }];

  return (
    <section aria-label="training run">
      <div class="tiles">
        <Tile
          label="policy version now"
          value={last === undefined ? `${run.policy}@0` : `${last.policy}@${last.version}`}
        />
        <Tile label="steps trained" value={String(steps.length)} />
        <Change
          label="held-out reward"
          before={before?.reward.mean}
          after={after?.reward.mean}
          show={(value) => value.toFixed(2)}
        />
        <Change
          label={`${firstTool} first, held out`}
          before={before?.first_tool.mean}
          after={after?.first_tool.mean}
          show={percent}
        />
        <Change
          label="right answers, held out"
          before={before?.correct.mean}
          after={after?.correct.mean}
          show={percent}
        />
      </div>
      {steps.length === 0 && (
        <p class="quiet">
          No training step yet.{" "}
          {before === undefined ? "The evaluation before training is running." : "The first batch is being gathered."}
        </p>
      )}
      <div class="charts">
        <Chart
          title="Reward"
          steps={axis}
          lines={[
            { label: "training batch", colour: "#c2410c", values: series("reward_mean") },
            {
              label: "held-out evaluation",
              colour: "#1c1917",
              values: marks((result) => result.reward.mean),
              dots: true,
            },
          ]}
        />
        <Chart
          title={`Runs that call ${firstTool} first`}
          steps={axis}
          range={[0, 1]}
          format={percent}
          lines={[
            { label: "training batch", colour: "#0f766e", values: series("first_tool_rate") },
            {
              label: "held-out evaluation",
              colour: "#1c1917",
              values: marks((result) => result.first_tool.mean),
              dots: true,
            },
          ]}
        />
      </div>
      <details>
        <summary>Health of the training: spread, KL, entropy, staleness, speed, merges</summary>
        <div class="charts small">
          <Chart title="Advantage spread" steps={axis} lines={one("spread", "advantage_spread")} />
          <Chart
            title="KL to the behaviour policy"
            steps={axis}
            lines={one("KL", "kl_behaviour")}
            format={(value) => value.toExponential(1)}
          />
          <Chart title="Entropy, nats a token" steps={axis} lines={one("entropy", "entropy")} />
          <Chart title="Staleness, versions" steps={axis} lines={one("staleness", "staleness_mean")} />
          <Chart
            title="Trained tokens a second"
            steps={axis}
            lines={one("tokens/s", "tokens_per_s_train")}
            format={(value) => value.toFixed(0)}
          />
          <Chart title="Gradient norm" steps={axis} lines={one("norm", "grad_norm")} />
          <Chart
            title="Turns that merge"
            steps={axis}
            lines={one("merged", "merge_rate")}
            range={[0, 1]}
            format={percent}
          />
        </div>
      </details>
    </section>
  );
}

function Tile({ label, value }: { readonly label: string; readonly value: string }) {
  return (
    <div class="tile">
      <div class="value">{value}</div>
      <div class="label">{label}</div>
    </div>
  );
}

interface ChangeProps {
  readonly label: string;
  readonly before: number | undefined;
  readonly after: number | undefined;
  readonly show: (value: number) => string;
}

function Change({ label, before, after, show }: ChangeProps) {
  return (
    <Tile
      label={label}
      value={`${before === undefined ? "…" : show(before)} → ${after === undefined ? "…" : show(after)}`}
    />
  );
}

function evaluation(value: unknown): Evaluation | undefined {
  const parsed = evaluationSchema.safeParse(value);
  return parsed.success ? parsed.data : undefined;
}

function watchedTool(config: unknown): string {
  const tool =
    config !== null && typeof config === "object" && "watchFirstTool" in config ? config.watchFirstTool : undefined;
  return typeof tool === "string" ? tool : "memory";
}
