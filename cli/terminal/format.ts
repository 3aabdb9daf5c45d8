/** Numbers as people read them. */

/** `45s`, `3m05s`, `1h02m` */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const two = (value: number): string => String(value).padStart(2, "0");
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
}

/** `840`, `3.4k`, `1.2M` */
export function compact(value: number): string {
  if (value < 1000) return String(Math.round(value));
  return value < 1_000_000 ? `${(value / 1000).toFixed(1)}k` : `${(value / 1_000_000).toFixed(1)}M`;
}

/** `37%` */
export function percent(share: number): string {
  return `${Math.round(share * 100)}%`;
}

/** `+0.41`, `−0.02` (a true minus, so that columns of signs line up) */
export function signed(value: number, digits = 2): string {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
}

/** `memory_first` → `memory first` */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

/** `1 rollout` and `2 rollouts`. */
export function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
