const BARS = "▁▂▃▄▅▆▇█";

/**
 * Values as one character each, between the least and the greatest of them; more values than characters are averaged
 * into as many spans, so that the whole course shows. Equal values are drawn low.
 * @param values finite numbers
 */
export function sparkline(values: readonly number[], width = 16): string {
  const columns = Math.min(width, values.length);
  const shown = Array.from({ length: columns }, (_, column) => {
    const span = values.slice(
      Math.floor((column * values.length) / columns),
      Math.floor(((column + 1) * values.length) / columns),
    );
    return span.reduce((sum, value) => sum + value, 0) / span.length;
  });
  const low = Math.min(...shown);
  const range = Math.max(...shown) - low;
  return shown
    .map((value) => BARS.charAt(range === 0 ? 0 : Math.round(((value - low) / range) * (BARS.length - 1))))
    .join("");
}
