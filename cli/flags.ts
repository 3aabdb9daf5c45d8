import { InvalidArgumentError, Option } from "commander";
import { urlListTextSchema } from "#shared/url-list.ts";
import { DEFAULT_STATE_DIR } from "./state.ts";

/** Flags that several commands share, and the parsing of their values. */

export function stateDirFlag(): Option {
  return new Option("--state-dir <folder>", "where everything is kept").default(DEFAULT_STATE_DIR);
}

/** A parser of whole numbers for commander. */
export function integer(low: number, high = Number.MAX_SAFE_INTEGER): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (!/^-?\d+$/.test(text) || value < low || value > high) {
      const range = high === Number.MAX_SAFE_INTEGER ? `of at least ${low}` : `from ${low} to ${high}`;
      throw new InvalidArgumentError(`It takes a whole number ${range}.`);
    }
    return value;
  };
}

/** One URL, or several with commas between, as text. */
export function urlList(text: string): string {
  if (!urlListTextSchema.safeParse(text).success) {
    throw new InvalidArgumentError("It takes a URL, or several different ones with commas between.");
  }
  return text;
}

/** An amount of money, of days or the like: a number that is not negative. */
export function amount(text: string): number {
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value) || value < 0) {
    throw new InvalidArgumentError("It takes a number such as 0.5 or 30.");
  }
  return value;
}

/** `15m`, `90s` or `900` as seconds. */
export function lifetime(maxSeconds: number): (text: string) => number {
  return (text) => {
    const match = /^(\d+)(s|m)?$/.exec(text);
    const seconds = match === null ? 0 : Number(match[1]) * (match[2] === "m" ? 60 : 1);
    if (seconds < 1 || seconds > maxSeconds)
      throw new InvalidArgumentError(`It takes a time such as 15m or 90s, at most ${maxSeconds / 60}m.`);
    return seconds;
  };
}
