/** What the pictures that are drawn as SVG have in common. */

export const FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif";
export const INK = "#1c2333";
export const MUTED = "#66708a";
export const GRID = "#e6e9f0";

/** About `count` round numbers within a range. */
export function ticks(low: number, high: number, count: number): number[] {
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
