import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

export interface Line {
  readonly label: string;
  readonly colour: string;
  readonly values: readonly (number | null)[];
  /** Values are dots, not joined (evaluations). */
  readonly dots?: boolean;
}

export interface ChartProps {
  readonly title: string;
  readonly steps: readonly number[];
  readonly lines: readonly Line[];
  readonly range?: readonly [number, number];
  readonly format?: (value: number) => string;
}

/** One small plot over training steps; drawn again when its numbers change, resized with its box. */
export function Chart({ title, steps, lines, range, format = (value) => value.toFixed(2) }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const shape = lines.map((line) => line.label).join("|");

  useEffect(() => {
    const element = box.current;
    if (element === null) return undefined;
    const ink = getComputedStyle(element).getPropertyValue("--muted");
    const grid = getComputedStyle(element).getPropertyValue("--line");
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const made = new uPlot(
      {
        width: element.clientWidth,
        height: 190,
        cursor: { y: false },
        scales: {
          x: { time: false },
          ...(range === undefined ? {} : { y: { range: [...range] as [number, number] } }),
        },
        axes: [axis, { ...axis, size: 46, values: (_, ticks) => ticks.map(format) }],
        series: [
          { label: "step" },
          ...lines.map((line) => ({
            label: line.label,
            stroke: line.colour,
            width: line.dots === true ? 0 : 2,
            points: line.dots === true ? { show: true, size: 9, fill: line.colour } : { show: false },
            value: (_: uPlot, value: number | null) => (value === null ? "–" : format(value)),
          })),
        ],
      },
      [[], ...lines.map(() => [])],
      element,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: 190 }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [shape]);

  useEffect(() => {
    plot.current?.setData([[...steps], ...lines.map((line) => [...line.values])]);
  }, [steps, lines]);

  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <div ref={box} />
    </figure>
  );
}
