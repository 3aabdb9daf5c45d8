import { createServer, type Server } from "node:http";
import { FulgurError } from "#shared/errors.ts";
import { ALARM_NAMES, type Alarms } from "./alarms.ts";
import { helpOf } from "./catalogue.ts";
import { EXPOSITION_TYPE, renderGauge, type Labels } from "./exposition.ts";
import { parseKey } from "./key.ts";
import type { MetricSink, StepPoint } from "./sink.ts";

export interface PrometheusOptions {
  /** 0 takes a free one. */
  readonly port: number;
  readonly run: string;
  readonly policy: string;
  readonly alarms: Pick<Alarms, "active">;
}

/**
 * The last step's metrics for Prometheus, at `GET http://127.0.0.1:<port>/metrics`: gauges `fulgur_train_<name>` with the
 * labels run and policy. Loopback only, without a key: it tells numbers of the run, and no prompts.
 */
export class PrometheusPage implements MetricSink {
  readonly name = "the Prometheus page";
  readonly #options: PrometheusOptions;
  #server: Server | undefined;
  #point: StepPoint | undefined;

  constructor(options: PrometheusOptions) {
    this.#options = options;
  }

  /** @throws FulgurError ERR_PORT_TAKEN */
  async open(): Promise<void> {
    const { port } = this.#options;
    const server = createServer((request, response) => {
      const isPage = request.method === "GET" && request.url === "/metrics";
      response.writeHead(isPage ? 200 : 404, { "content-type": isPage ? EXPOSITION_TYPE : "text/plain" });
      response.end(isPage ? this.render() : "GET /metrics\n");
    });
    await new Promise<void>((resolve, reject) => {
      server.once("error", (cause) =>
        reject(
          new FulgurError("ERR_PORT_TAKEN", `port ${port} cannot be listened at; choose another --metrics-port`, {
            cause,
          }),
        ),
      );
      server.listen(port, "127.0.0.1", resolve);
    });
    // A scraper's open connection must not keep a finished trainer alive.
    server.unref();
    this.#server = server;
  }

  /** Where it listens; undefined before it is open. */
  get port(): number | undefined {
    const address = this.#server?.address();
    return typeof address === "object" && address !== null ? address.port : undefined;
  }

  async write(point: StepPoint): Promise<void> {
    this.#point = point;
  }

  render(): string {
    const { run, policy, alarms } = this.#options;
    const common = { run, policy };
    const active = new Set(alarms.active);
    const families = new Map<string, { labels: Labels; value: number }[]>();
    const { step = 0, metrics = {} } = this.#point ?? {};
    for (const [key, value] of Object.entries(metrics)) {
      const { name, label, value: labelled = "" } = parseKey(key);
      const labels = label === undefined ? common : { ...common, [label]: labelled };
      families.set(name, [...(families.get(name) ?? []), { labels, value }]);
    }
    return [
      renderGauge("fulgur_train_step", "Steps trained", [{ labels: common, value: step }]),
      ...[...families].map(([name, values]) => renderGauge(`fulgur_train_${name}`, helpOf(name), values)),
      renderGauge(
        "fulgur_train_alarm",
        "1 while the alarm's condition is true",
        ALARM_NAMES.map((alarm) => ({ labels: { ...common, alarm }, value: active.has(alarm) ? 1 : 0 })),
      ),
    ].join("");
  }

  async close(): Promise<void> {
    const server = this.#server;
    if (server === undefined) return;
    await new Promise<void>((resolve) => {
      server.close(() => resolve());
      server.closeAllConnections();
    });
  }
}
