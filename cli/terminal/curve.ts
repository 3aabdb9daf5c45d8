import { duration, percent, signed, words } from "./format.ts";
import { comparisons, type Measured, type Summary } from "./summary.ts";
import { escapeXml, FONT, MUTED, paddedRange, stepAxis, text, valueGrid } from "./svg.ts";

/**
 * The learning curve as an SVG picture, drawn from numbers alone: two panels over the steps, evaluations at both ends; one
 * panel where there is nothing to say of first tools.
 */

export interface CurvePoint {
  readonly step: number;
  readonly reward: number;
  /** Share of rollouts whose first tool call is the watched one, 0–1; undefined where none was judged. */
  readonly firstTool: number | undefined;
}

const WIDTH = 960;
const HEIGHT = 650;
const LEFT = 84;
const RIGHT = 212;
const PANEL_HEIGHT = 200;
const FIRST_TOP = 128;
const GAP = 66;

interface Panel {
  readonly title: string;
  readonly name: string;
  readonly colour: string;
  readonly top: number;
  readonly values: readonly number[];
  readonly format: (value: number) => string;
  readonly change: (value: number) => string;
  readonly range: readonly [number, number];
}

/**
 * @param points one per training step, ascending
 * @returns a whole SVG document, 960 × 650, or 960 × 384 with one panel
 */
export function curveSvg(points: readonly CurvePoint[], summary: Summary): string {
  const shares = comparisons(summary);
  const firstName = shares.find(({ name }) => name.endsWith("_first"))?.name ?? "memory_first";
  const rewards = points.map((point) => point.reward);
  const firstTools = points.flatMap(({ firstTool }) => (firstTool === undefined ? [] : [firstTool]));
  const all: Omit<Panel, "top">[] = [
    {
      title: `${words(firstName)}: share of rollouts`,
      name: firstName,
      colour: "#0b7d72",
      values: firstTools,
      format: percent,
      change: (value) => `${signed(value * 100, 0)} points`,
      range: [0, 1],
    },
    {
      title: "reward: mean of a rollout",
      name: "reward",
      colour: "#3f51c7",
      values: rewards,
      format: (value) => value.toFixed(2).replace("-", "−"),
      change: (value) => signed(value),
      range: paddedRange([...rewards, ...ends(summary, "reward")]),
    },
  ];
  const steps = points.map((point) => point.step);
  // A curve needs a value at each step.
  const panels = all
    .filter(({ values }) => values.length === points.length)
    .map((panel, index): Panel => ({ ...panel, top: FIRST_TOP + index * (PANEL_HEIGHT + GAP) }));
  const height = HEIGHT - (all.length - panels.length) * (PANEL_HEIGHT + GAP);
  const body = panels.map((panel, index) =>
    drawPanel(panel, {
      steps,
      comparison: shares.find(({ name }) => name === panel.name),
      last: index === panels.length - 1,
    }),
  );
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" font-family="${FONT}" role="img" aria-label="Learning curve of the ${escapeXml(summary.task)} agent">`,
    `<rect width="100%" height="100%" fill="#ffffff"/>`,
    text(40, 46, `The ${summary.task} agent, learning`, { size: 22, weight: "bold" }),
    text(
      40,
      72,
      `${summary.steps} steps in ${duration(summary.wall_s)} · ${summary.rollouts.toLocaleString("en")} rollouts · ` +
        (summary.eval_after === null
          ? "not evaluated"
          : `evaluated on ${summary.eval_after.n} held-out tasks (bars: 95% confidence)`),
      { size: 13, colour: MUTED },
    ),
    ...body,
    "</svg>",
    "",
  ].join("\n");
}

interface PanelContext {
  readonly steps: readonly number[];
  readonly comparison: { readonly before: Measured; readonly after: Measured } | undefined;
  readonly last: boolean;
}

function drawPanel(panel: Panel, { steps, comparison, last }: PanelContext): string {
  const { top, colour, values, format, range } = panel;
  const [low, high] = range;
  const bottom = top + PANEL_HEIGHT;
  const firstStep = steps[0] ?? 0;
  const lastStep = Math.max(steps.at(-1) ?? 1, firstStep + 1);
  // Evaluations stand beside the curve, before its first and behind its last step.
  const inner = { from: LEFT + 48, to: WIDTH - RIGHT - 48 };
  const x = (step: number): number =>
    inner.from + ((step - firstStep) / (lastStep - firstStep)) * (inner.to - inner.from);
  const y = (value: number): number => bottom - ((value - low) / (high - low)) * PANEL_HEIGHT;
  const at = (value: number): string => value.toFixed(1);

  const parts: string[] = [text(LEFT, top - 14, panel.title, { size: 14, weight: "bold", colour })];
  parts.push(...valueGrid(range, { left: LEFT, right: WIDTH - RIGHT, y, format }));
  if (last) parts.push(...stepAxis([firstStep, lastStep], { bottom, x }));

  const path = (series: readonly number[]): string =>
    series.map((value, index) => `${index === 0 ? "M" : "L"}${at(x(steps[index] ?? 0))} ${at(y(value))}`).join(" ");
  if (values.length > 0) {
    const smooth = smoothed(values);
    parts.push(
      `<path d="${path(values)}" fill="none" stroke="${colour}" stroke-opacity="0.3" stroke-width="1.3"/>`,
      `<path d="${path(smooth)}" fill="none" stroke="${colour}" stroke-width="2.8" stroke-linejoin="round" stroke-linecap="round"/>`,
    );
  }
  if (comparison !== undefined) {
    parts.push(
      marker(LEFT + 14, comparison.before, { y, colour, hollow: true }),
      marker(WIDTH - RIGHT - 14, comparison.after, { y, colour, hollow: false }),
    );
    const right = WIDTH - RIGHT + 22;
    const change = comparison.after.value - comparison.before.value;
    parts.push(
      text(right, top + 52, format(comparison.after.value), { size: 34, weight: "bold", colour }),
      text(right, top + 76, `after, from ${format(comparison.before.value)}`, { size: 13, colour: MUTED }),
      text(right, top + 96, panel.change(change), { size: 13, colour: MUTED }),
      ...[[LEFT + 14, "before"] as const, [WIDTH - RIGHT - 14, "after"] as const].map(([middle, label]) =>
        text(middle, bottom + 22, label, { size: 12, colour: MUTED, anchor: "middle" }),
      ),
    );
  }
  return parts.join("\n");
}

/** A dot with its confidence interval as a bar: hollow before training, full after. */
function marker(
  x: number,
  { value, ci }: Measured,
  { y, colour, hollow }: { y: (value: number) => number; colour: string; hollow: boolean },
): string {
  const dot = `<circle cx="${x}" cy="${y(value).toFixed(1)}" r="5.5" fill="${hollow ? "#ffffff" : colour}" stroke="${colour}" stroke-width="2.5"/>`;
  if (ci === undefined) return dot;
  const [low, high] = [y(ci[0]).toFixed(1), y(ci[1]).toFixed(1)];
  return (
    `<path d="M${x} ${low} V${high} M${x - 6} ${low} h12 M${x - 6} ${high} h12" stroke="${colour}" stroke-width="2" stroke-opacity="0.75" fill="none"/>` +
    dot
  );
}

/** Centred mean over a window that shrinks at both ends, so that the line neither lags nor invents. */
function smoothed(values: readonly number[]): number[] {
  const half = Math.min(4, Math.floor(values.length / 8));
  return values.map((_, index) => {
    const reach = Math.min(half, index, values.length - 1 - index);
    const window = values.slice(index - reach, index + reach + 1);
    return window.reduce((sum, value) => sum + value, 0) / window.length;
  });
}

function ends(summary: Summary, name: string): number[] {
  const found = comparisons(summary).find((comparison) => comparison.name === name);
  if (found === undefined) return [];
  return [found.before, found.after].flatMap(({ value, ci }) => [value, ...(ci ?? [])]);
}
