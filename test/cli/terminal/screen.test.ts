import { expect, test } from "vitest";
import { createScreen } from "../../../cli/terminal/screen.ts";

function stream(isTTY?: boolean) {
  const written: string[] = [];
  return { out: { write: (text: string) => written.push(text), isTTY, columns: 40 }, text: () => written.join("") };
}

test("off a TTY no control code is written and live lines are rare", () => {
  const { out, text } = stream();
  let now = 0;
  const screen = createScreen({ out, env: {}, now: () => now, plainEveryMs: 1000 });
  screen.line(screen.style.green("one"));
  screen.live("too soon");
  now = 1000;
  screen.live("in time");
  screen.line("two");
  expect(text()).toBe("one\nin time\ntwo\n");
});

test("on a TTY a live line is removed before the next line and cut to the terminal's width", () => {
  const { out, text } = stream(true);
  const screen = createScreen({ out, env: { NO_COLOR: "1" } });
  screen.live("x".repeat(100));
  screen.line("done");
  expect(text()).toBe(`${"x".repeat(38)}…\r\u001B[2Kdone\n`);
});

test("NO_COLOR keeps a TTY without colours, and a TTY has them otherwise", () => {
  expect(createScreen({ out: stream(true).out, env: { NO_COLOR: "1" } }).style.red("a")).toBe("a");
  expect(createScreen({ out: stream(true).out, env: {} }).style.red("a")).toBe("\u001B[31ma\u001B[39m");
  expect(createScreen({ out: stream(true).out, env: { TERM: "dumb" } }).style.red("a")).toBe("a");
});
