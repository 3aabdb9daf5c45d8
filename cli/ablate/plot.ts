import { percent } from "../terminal/format.ts";
import { escapeXml, FONT, MUTED, paddedRange, stepAxis, text, valueGrid } from "../terminal/svg.ts";
import type { ArmResult, CellResult, Spread } from "./results.ts";

/** An ablation as an SVG picture: what is learnt over the steps, a line for each arm, drawn from numbers alone. */

export interface PlotOptions {
  readonly title: string;
  readonly subtitle: string;
  /** What the share of first tool calls is called, such as `memory first`. */
  readonly firstToolName: string;
}

const WIDTH = 960;
const LEFT = 84;
const RIGHT = 40;
const PANEL_HEIGHT = 220;
const FIRST_TOP = 122;
const GAP = 58;
const LEGEND_LINE = 24;

/** Told apart by people who confuse colours (Okabe and Ito 2008), in an order that keeps neighbours apart. */
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f6d00"];
const DASHES = ["", "8 4", "2 4"];

interface Line {
  readonly steps: readonly number[];
  readonly mean: readonly number[];
  readonly low: readonly number[];
  readonly high: readonly number[];
}

interface Panel {
  readonly title: string;
  readonly metric: string;
  readonly top: number;
  readonly range: readonly [number, number] | undefined;
  readonly format: (value: number) => string;
}

/**
 * Two panels over the steps: the mean over an arm's seeds as a line, its lowest and highest seed as a band; below them
 * a legend with the numbers after training.
 * @returns a whole SVG document, 960 wide
 */
export function ablationSvg(arms: readonly ArmResult[], { title, subtitle, firstToolName }: PlotOptions): string {
  const panels: Panel[] = [
    {
      title: `${firstToolName}: share of rollouts`,
      metric: "first_tool_rate",
      top: FIRST_TOP,
      range: [0, 1],
      format: percent,
    },
    {
      title: "reward: mean of a rollout",
      metric: "reward_mean",
      top: FIRST_TOP + PANEL_HEIGHT + GAP,
      range: undefined,
      format: (value) => value.toFixed(2).replace("-", "−"),
    },
  ];
  const legendTop = FIRST_TOP + 2 * PANEL_HEIGHT + GAP + 78;
  const height = legendTop + arms.length * LEGEND_LINE + 20;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" font-family="${FONT}" role="img" aria-label="${escapeXml(title)}">`,
    `<rect width="100%" height="100%" fill="#ffffff"/>`,
    text(40, 46, title, { size: 22, weight: "bold" }),
    text(40, 72, subtitle, { size: 13, colour: MUTED }),
    ...panels.map((panel, index) => drawPanel(panel, arms, { isLast: index === panels.length - 1 })),
    text(LEFT + 44, legendTop - 8, "after training", { size: 12, colour: MUTED }),
    ...arms.map((arm, index) => legendLine(arm, index, { y: legendTop + (index + 0.5) * LEGEND_LINE, firstToolName })),
    "</svg>",
    "",
  ].join("\n");
}

/** A metric's mean, lowest and highest over an arm's runs, at the steps that all of them have. */
export function lineOf(runs: readonly CellResult[], metric: string): Line {
  const series = runs.map(
    ({ steps }) =>
      new Map(
        steps.flatMap(({ step, metrics }) => (metrics[metric] === undefined ? [] : [[step, metrics[metric]] as const])),
      ),
  );
  const steps = [...(series[0]?.keys() ?? [])].filter((step) => series.every((each) => each.has(step)));
  const values = steps.map((step) => series.map((each) => each.get(step) ?? 0));
  return {
    steps,
    mean: values.map((each) => each.reduce((sum, value) => sum + value, 0) / each.length),
    low: values.map((each) => Math.min(...each)),
    high: values.map((each) => Math.max(...each)),
  };
}

function drawPanel(panel: Panel, arms: readonly ArmResult[], { isLast }: { readonly isLast: boolean }): string {
  const lines = arms.map(({ runs }) => lineOf(runs, panel.metric));
  const [low, high] = panel.range ?? paddedRange(lines.flatMap((line) => [...line.low, ...line.high]));
  const bottom = panel.top + PANEL_HEIGHT;
  const all = lines.flatMap((line) => line.steps);
  const firstStep = Math.min(1, ...all);
  const lastStep = Math.max(firstStep + 1, ...all);
  const x = (step: number): number => LEFT + ((step - firstStep) / (lastStep - firstStep)) * (WIDTH - RIGHT - LEFT);
  const y = (value: number): number => bottom - ((value - low) / (high - low)) * PANEL_HEIGHT;

  const parts = [text(LEFT, panel.top - 14, panel.title, { size: 14, weight: "bold" })];
  parts.push(...valueGrid([low, high], { left: LEFT, right: WIDTH - RIGHT, y, format: panel.format }));
  if (isLast) parts.push(...stepAxis([firstStep, lastStep], { bottom, x }));
  // Bands first: no line is hidden by another arm's.
  lines.forEach(({ steps, low: lows, high: highs }, index) => {
    if (steps.length < 2 || (arms[index]?.runs.length ?? 0) < 2) return;
    const edge = [
      ...steps.map((step, at) => [step, highs[at]] as const),
      ...steps.map((step, at) => [step, lows[at]] as const).toReversed(),
    ];
    parts.push(
      `<polygon points="${edge.map(([step, value]) => `${x(step).toFixed(1)},${y(value ?? 0).toFixed(1)}`).join(" ")}" fill="${colourOf(index)}" fill-opacity="0.13"/>`,
    );
  });
  lines.forEach(({ steps, mean }, index) => {
    if (steps.length === 0) return;
    const path = steps.map((step, at) => `${at === 0 ? "M" : "L"}${x(step).toFixed(1)} ${y(mean[at] ?? 0).toFixed(1)}`);
    parts.push(`<path d="${path.join(" ")}" ${strokeOf(index)} fill="none" stroke-linejoin="round"/>`);
  });
  return parts.join("\n");
}

function legendLine(
  { arm, runs, reward, firstTool }: ArmResult,
  index: number,
  { y, firstToolName }: { readonly y: number; readonly firstToolName: string },
): string {
  const numbers = [
    `reward ${shown(reward, (value) => value.toFixed(3))}`,
    `${firstToolName} ${shown(firstTool, percent)}`,
    `${runs.length} ${runs.length === 1 ? "seed" : "seeds"}`,
  ];
  return [
    `<line x1="${LEFT}" x2="${LEFT + 34}" y1="${y}" y2="${y}" ${strokeOf(index)}/>`,
    text(LEFT + 44, y + 4, arm.name, { size: 13, weight: "bold" }),
    text(WIDTH - RIGHT, y + 4, runs.length === 0 ? "not run" : numbers.join(" · "), {
      size: 13,
      colour: MUTED,
      anchor: "end",
    }),
  ].join("\n");
}

function shown(found: Spread | undefined, format: (value: number) => string): string {
  if (found === undefined) return "–";
  return found.sd === null ? format(found.mean) : `${format(found.mean)} ± ${format(found.sd)}`;
}

function colourOf(index: number): string {
  return COLOURS[index % COLOURS.length] ?? "#000000";
}

function strokeOf(index: number): string {
  const dash = DASHES[Math.floor(index / COLOURS.length) % DASHES.length] ?? "";
  return `stroke="${colourOf(index)}" stroke-width="2.4"${dash === "" ? "" : ` stroke-dasharray="${dash}"`}`;
}
