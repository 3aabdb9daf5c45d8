/** What the pictures that are drawn as SVG have in common. */

export const FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif";
export const INK = "#1c2333";
export const MUTED = "#66708a";
const GRID = "#e6e9f0";

/** About `count` round numbers within a range. */
function ticks(low: number, high: number, count: number): number[] {
  const rough = (high - low) / count;
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 2.5, 5, 10].map((factor) => factor * magnitude).find((step) => step >= rough) ?? rough;
  const found: number[] = [];
  for (let index = Math.ceil(low / size); index * size <= high + size * 1e-9; index += 1) {
    // Adding 0 turns −0 into 0; rounding removes float dust such as 0.30000000000000004.
    found.push(Number((index * size).toPrecision(10)) + 0);
  }
  return found;
}

/** A panel's grid: a line at each round value, the value at its left. */
export function valueGrid(
  [low, high]: readonly [number, number],
  at: {
    readonly left: number;
    readonly right: number;
    readonly y: (value: number) => number;
    readonly format: (value: number) => string;
  },
): string[] {
  return ticks(low, high, 4).flatMap((tick) => {
    const y = at.y(tick);
    return [
      `<line x1="${at.left}" x2="${at.right}" y1="${y.toFixed(1)}" y2="${y.toFixed(1)}" stroke="${GRID}"/>`,
      text(at.left - 10, y + 4, at.format(tick), { size: 12, colour: MUTED, anchor: "end" }),
    ];
  });
}

/** The axis of training steps under a panel, named in the middle between its ends. */
export function stepAxis(
  [first, last]: readonly [number, number],
  at: { readonly bottom: number; readonly x: (step: number) => number },
): string[] {
  const label = { size: 12, colour: MUTED, anchor: "middle" } as const;
  return [
    ...ticks(first, last, 6)
      .filter(Number.isInteger)
      .map((tick) => text(at.x(tick), at.bottom + 22, String(tick), label)),
    text((at.x(first) + at.x(last)) / 2, at.bottom + 44, "training step", label),
  ];
}

/** The range that shows all values with some air; from 0 where none is below it, and never empty. */
export function paddedRange(values: readonly number[]): [number, number] {
  const low = Math.min(0, ...values);
  const high = Math.max(0.1, ...values);
  const pad = (high - low) * 0.08;
  return [low < 0 ? low - pad : 0, high + pad];
}

/** How a text looks. */
export interface TextOptions {
  readonly size: number;
  readonly colour?: string;
  readonly weight?: "normal" | "bold";
  readonly anchor?: "start" | "middle" | "end";
}

/** A line of text; `anchor` says which part of it is at x. */
export function text(x: number, y: number, content: string, options: TextOptions): string {
  const { size, colour = INK, weight = "normal", anchor = "start" } = options;
  return `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" font-size="${size}" font-weight="${weight}" fill="${colour}" text-anchor="${anchor}">${escapeXml(content)}</text>`;
}

/** Text as it may stand in an element or an attribute. */
export function escapeXml(content: string): string {
  return content.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
