import { Hono } from "hono";
import type { EdgeHono } from "../context.ts";

const HELP = {
  calls: "LLM calls recorded or tried to record",
  call_errors: "LLM calls that ended in an error",
  client_disconnects: "streams whose client left before the end",
  records_lost: "live calls answered without a record (fail open)",
} as const;

/** `/metrics` in Prometheus' text form: this isolate's counters, and the writer's state. No tenant's data is in it. */
export const metricRoutes = new Hono<EdgeHono>().get("/", async (c) => {
  const { parts, writer } = c.var;
  const { storeUp, outbox } = await writer.status();
  const counted = Object.entries(parts.counters.read()).map(([name, value]) => {
    const help = Object.entries(HELP).find(([key]) => key === name)?.[1] ?? name;
    return `# HELP fulgur_${name}_total ${help}\n# TYPE fulgur_${name}_total counter\nfulgur_${name}_total ${value}\n`;
  });
  const gauges = [
    `# HELP fulgur_store_up 1 while writes reach libSQL\n# TYPE fulgur_store_up gauge\nfulgur_store_up ${storeUp ? 1 : 0}\n`,
    `# HELP fulgur_outbox_units units that wait for libSQL\n# TYPE fulgur_outbox_units gauge\nfulgur_outbox_units ${outbox}\n`,
  ];
  return c.text([...counted, ...gauges].join(""), 200, { "content-type": "text/plain; version=0.0.4; charset=utf-8" });
});
