/** Colours for a terminal that shows them; the identity otherwise, so that no escape code reaches a file or a pipe. */
export interface Style {
  readonly bold: (text: string) => string;
  readonly dim: (text: string) => string;
  readonly green: (text: string) => string;
  readonly red: (text: string) => string;
  readonly yellow: (text: string) => string;
  readonly cyan: (text: string) => string;
}

const plain = (text: string): string => text;

export const PLAIN: Style = { bold: plain, dim: plain, green: plain, red: plain, yellow: plain, cyan: plain };

const code =
  (open: number, close: number) =>
  (text: string): string =>
    `\u001B[${open}m${text}\u001B[${close}m`;

export const COLOURED: Style = {
  bold: code(1, 22),
  dim: code(2, 22),
  green: code(32, 39),
  red: code(31, 39),
  yellow: code(33, 39),
  cyan: code(36, 39),
};

/** Colours on a TTY, unless NO_COLOR is set to anything (no-color.org) or the terminal is dumb. */
export function styleFor(isTty: boolean, env: Readonly<Record<string, string | undefined>>): Style {
  const refused = env["NO_COLOR"] !== undefined && env["NO_COLOR"] !== "";
  return isTty && !refused && env["TERM"] !== "dumb" ? COLOURED : PLAIN;
}
