import { chromium as driver, type Browser } from "playwright-core";

/**
 * A real browser for tests: the Chromium that comes through the package registry on Linux x64, elsewhere an installed
 * Chrome. It needs no download of its own.
 */
export async function launchBrowser(): Promise<Browser> {
  if (process.platform !== "linux" || process.arch !== "x64") return driver.launch({ channel: "chrome" });
  const { default: chromium } = await import("@sparticuz/chromium");
  return driver.launch({
    executablePath: await chromium.executablePath(),
    args: chromium.args,
    // Under the C locale this build calls its language `en-US@posix`, which Intl (and so uPlot) refuses.
    env: { ...process.env, LANG: "en_US.UTF-8", LC_ALL: "en_US.UTF-8", LANGUAGE: "en_US" },
  });
}
