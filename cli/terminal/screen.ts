import { stripVTControlCharacters } from "node:util";
import { styleFor, type Style } from "./style.ts";

/** Where a command writes what people read. */
export interface Screen {
  readonly style: Style;
  /** Characters in a line; lines may be longer where nobody draws them again. */
  readonly columns: number;
  /** A line that stays. */
  line(text?: string): void;
  /** A line that the next one replaces. Off a TTY, one such line in a while is kept instead. */
  live(text: string): void;
  /** Removes the live line. */
  clear(): void;
}

export interface ScreenOptions {
  readonly out: {
    write(text: string): unknown;
    /** Missing on a pipe or a file. */
    readonly isTTY?: boolean | undefined;
    readonly columns?: number | undefined;
  };
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly now?: () => number;
  /** Off a TTY: the least time between two live lines that are printed. */
  readonly plainEveryMs?: number;
}

/** A screen over a stream: redraws on a TTY, plain lines without any control code elsewhere. */
export function createScreen(options: ScreenOptions): Screen {
  const { out, env, now = Date.now, plainEveryMs = 15_000 } = options;
  const isTty = out.isTTY === true;
  const style = styleFor(isTty, env);
  let drawn = false;
  let lastPlainAt = now();

  const clear = (): void => {
    if (drawn) out.write("\r\u001B[2K");
    drawn = false;
  };
  const columns = (): number => (isTty ? (out.columns ?? 80) : Number.POSITIVE_INFINITY);

  return {
    style,
    get columns() {
      return columns();
    },
    line(text = "") {
      clear();
      lastPlainAt = now();
      out.write(`${text}\n`);
    },
    live(text) {
      if (isTty) {
        clear();
        out.write(fit(text, columns() - 1));
        drawn = true;
      } else if (now() - lastPlainAt >= plainEveryMs) {
        lastPlainAt = now();
        out.write(`${text}\n`);
      }
    },
    clear,
  };
}

/** A live line must not wrap, or it could not be removed. A cut line loses its colours. */
function fit(text: string, columns: number): string {
  const bare = stripVTControlCharacters(text);
  return bare.length <= columns ? text : `${bare.slice(0, Math.max(0, columns - 1))}…`;
}
