import {
  configure,
  getConsoleSink,
  getJsonLinesFormatter,
  getLogger,
  type Logger,
  type LogLevel,
} from "@logtape/logtape";

/**
 * Structured logging, one JSON object a line on stderr: `log.info("rollout.claimed", { rolloutId })`.
 * Events are `noun.verb`; ids are fields. Nothing is written until a composition root calls {@link startLogging}.
 */
export function logger(part: string): Logger {
  return getLogger(["fulgur", part]);
}

/** Called once by each process or Worker. Level `warning` keeps a run's terminal quiet. */
export async function startLogging(level: LogLevel = "info"): Promise<void> {
  await configure({
    reset: true,
    sinks: { console: getConsoleSink({ formatter: getJsonLinesFormatter() }) },
    loggers: [
      { category: ["fulgur"], lowestLevel: level, sinks: ["console"] },
      { category: ["logtape", "meta"], lowestLevel: "warning", sinks: ["console"] },
    ],
  });
}
