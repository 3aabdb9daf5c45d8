import { Hono } from "hono";
import type { EdgeHono } from "../context.ts";
import { shardStates } from "../shard-states.ts";

const HELP = {
  calls: "LLM calls recorded or tried to record",
  call_errors: "LLM calls that ended in an error",
  client_disconnects: "streams whose client left before the end",
  records_lost: "live calls answered without a record (fail open)",
} as const;

/** `/metrics` in Prometheus' text form: this isolate's counters, and the writers' state. No tenant's data is in it. */
export const metricRoutes = new Hono<EdgeHono>().get("/", async (c) => {
  const { edge } = c.var;
  const shards = await shardStates(c.env, edge.config);
  const counted = Object.entries(edge.counters.read()).map(([name, value]) => {
    const help = Object.entries(HELP).find(([key]) => key === name)?.[1] ?? name;
    return `# HELP fulgur_${name}_total ${help}\n# TYPE fulgur_${name}_total counter\nfulgur_${name}_total ${value}\n`;
  });
  const servers = edge.servers.states();
  const outbox = shards.reduce((sum, shard) => sum + shard.outbox, 0);
  const gauges = [
    gauge("store_up", "1 while writes reach libSQL, in all shards", [["", bit(shards.every(({ up }) => up))]]),
    gauge("outbox_units", "units that wait for libSQL", [["", outbox]]),
    ...(servers.length === 1
      ? []
      : [
          gauge(
            "inference_in_service",
            "1 while this isolate sends calls to the inference server",
            servers.map(({ server, inService }) => [`{server="${server}"}`, bit(inService)]),
          ),
        ]),
    ...(shards.length === 1
      ? []
      : [
          gauge(
            "shard_up",
            "1 while writes reach the shard's libSQL",
            shards.map(({ shard, up }) => [`{shard="${shard}"}`, bit(up)]),
          ),
          gauge(
            "shard_outbox_units",
            "units that wait for the shard's libSQL",
            shards.map((state) => [`{shard="${state.shard}"}`, state.outbox]),
          ),
        ]),
  ];
  return c.text([...counted, ...gauges].join(""), 200, { "content-type": "text/plain; version=0.0.4; charset=utf-8" });
});

function gauge(name: string, help: string, values: readonly (readonly [labels: string, value: number])[]): string {
  const lines = values.map(([labels, value]) => `fulgur_${name}${labels} ${value}\n`);
  return `# HELP fulgur_${name} ${help}\n# TYPE fulgur_${name} gauge\n${lines.join("")}`;
}

function bit(is: boolean): number {
  return is ? 1 : 0;
}
