import { createServer, type Server } from "node:http";
import { afterEach, expect, it } from "vitest";
import { Alarms } from "../../../trainer/metrics/alarms.ts";
import { PrometheusPage } from "../../../trainer/metrics/prometheus.ts";

const pages: PrometheusPage[] = [];
afterEach(async () => {
  for (const page of pages.splice(0)) await page.close();
});

async function open(port: number, alarms = new Alarms()): Promise<PrometheusPage> {
  const page = new PrometheusPage({ port, run: "r1", policy: "flight", alarms });
  pages.push(page);
  await page.open();
  return page;
}

it("serves the last step's metrics, each family once, kinds as labels", async () => {
  const alarms = new Alarms();
  const page = await open(0, alarms);
  const metrics = { entropy: 0.5, "reward_mean/role/main": 1, reward_mean: 0.25, ess: 0.1 };
  await page.write({ step: 1, time: 0, metrics: { loss: 1 } });
  await page.write({ step: 2, time: 1, metrics });
  alarms.observe(metrics);
  const response = await fetch(`http://127.0.0.1:${page.port}/metrics`);
  expect(response.status).toBe(200);
  expect(response.headers.get("content-type")).toBe("text/plain; version=0.0.4; charset=utf-8");
  const text = await response.text();
  expect(text).toContain(
    '# HELP fulgur_train_step Steps trained\n# TYPE fulgur_train_step gauge\nfulgur_train_step{run="r1",policy="flight"} 2\n',
  );
  expect(text).toContain(
    "# TYPE fulgur_train_reward_mean gauge\n" +
      'fulgur_train_reward_mean{run="r1",policy="flight",role="main"} 1\n' +
      'fulgur_train_reward_mean{run="r1",policy="flight"} 0.25\n',
  );
  expect(text).toContain('fulgur_train_alarm{run="r1",policy="flight",alarm="ess"} 1\n');
  expect(text).toContain('fulgur_train_alarm{run="r1",policy="flight",alarm="stale"} 0\n');
  expect(text).not.toContain("fulgur_train_loss");
  const families = text.match(/^# TYPE \S+/gm) ?? [];
  expect(new Set(families).size).toBe(families.length);
  // The text format: comments, and names with labels and a number.
  for (const line of text.trimEnd().split("\n")) {
    expect(line).toMatch(
      /^(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\} -?[\d.]+(e[+-]?\d+)?)$/,
    );
  }
});

it("answers nothing else", async () => {
  const { port } = await open(0);
  expect((await fetch(`http://127.0.0.1:${port}/`)).status).toBe(404);
  expect((await fetch(`http://127.0.0.1:${port}/metrics`, { method: "POST" })).status).toBe(404);
});

it("says which port is taken", async () => {
  const other = await new Promise<Server>((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => resolve(server));
  });
  const address = other.address();
  const port = typeof address === "object" && address !== null ? address.port : 0;
  await expect(open(port)).rejects.toMatchObject({
    code: "ERR_PORT_TAKEN",
    message: `port ${port} cannot be listened at; choose another --metrics-port`,
  });
  await new Promise((resolve) => other.close(resolve));
});
