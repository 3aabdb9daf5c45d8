export function percent(value: number): string {
  return `${Math.round(value * 100)}%`;
}

export function fixed(value: number | null | undefined, digits = 2): string {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

export function milliseconds(value: number | null): string {
  return value === null ? "–" : value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

export function clock(time: number): string {
  return new Date(time).toLocaleTimeString();
}
