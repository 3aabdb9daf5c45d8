import { expect, test } from "vitest";
import { runClients } from "../../bench/clients-parts/run-clients.ts";

/** The small brother of `npm run bench -- clients`, which has ten times the clients and twenty times the rollouts. */
const CLIENTS = 30;
const ROLLOUTS = 500;

test(
  `${ROLLOUTS} rollouts of ${CLIENTS} clients at once, some of which misbehave, all end with one disposition`,
  { timeout: 300_000 },
  async () => {
    const report = await runClients({ clients: CLIENTS, rollouts: ROLLOUTS });
    expect(report.trainer.code === 0 ? "" : report.trainer.stderr).toBe("");
    expect(report.rollouts).toBeGreaterThanOrEqual(ROLLOUTS);
    expect(report.wrong).toEqual([]);
    // None of this is seen where clients come one after another, or all behave.
    expect(report.clients.mostAtOnce).toBe(CLIENTS);
    expect(report.clients.mishaps).toBeGreaterThan(0);
    expect(report.dispositions["trained"]).toBeGreaterThan(ROLLOUTS / 4);
    expect(Object.keys(report.dispositions).length).toBeGreaterThan(2);
    expect(report.calls).toBeGreaterThanOrEqual(report.clients.calls);
  },
);
