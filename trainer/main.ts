import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import { edgeClient, type EdgeClient } from "#shared/client.ts";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { inferenceClient } from "#shared/inference-client.ts";
import { logger, startLogging } from "#shared/log.ts";
import type { RunEvent } from "#shared/run-events.ts";
import { connectStore } from "#shared/store/connect.ts";
import { mintToken, type KeySet } from "#shared/tokens.ts";
import { urlListSchema } from "#shared/url-list.ts";
import type { Scope } from "#shared/words.ts";
import { helpText, parseFlags, runPaths, type TrainerConfig } from "./config.ts";
import { drain } from "./drain.ts";
import { armFault, faultPoint, followSteps, withFaultPoints } from "./fault-point.ts";
import { trainRun } from "./loop.ts";
import { Alarms } from "./metrics/alarms.ts";
import { MetricsJournal } from "./metrics/jsonl.ts";
import { PrometheusPage } from "./metrics/prometheus.ts";
import { RunMetrics } from "./metrics/run-metrics.ts";
import { StorePoints } from "./metrics/store-points.ts";
import { TensorBoardFile } from "./metrics/tensorboard.ts";
import { openEngine } from "./open-engine.ts";
import { patient } from "./patience.ts";
import { inferenceFleet } from "./release/fleet.ts";
import { storeReader } from "./store-reader.ts";
import { isModulePath, loadUserAlgorithm } from "./user-algorithm.ts";

/**
 * The trainer's process. Run events as JSON lines on stdout, logs on stderr. SIGTERM and SIGINT end it cleanly: a step
 * that is being trained is finished and published, so that at most the waiting is lost, and with `--drain-seconds` the
 * rollouts under way are waited for (drain.ts); a second signal ends it at once.
 *
 * Exit codes: 0 finished or stopped, 1 failed (started again it resumes), 2 wrong flags, 3 paused by an alarm (started
 * again it goes on).
 */

const log = logger("trainer");
const keySetSchema = z.object({ keys: z.array(z.looseObject({ kty: z.string(), kid: z.string() })).min(1) });

/** Tells why a run ends early; not an error. */
class Stop extends Error {}

async function main(argv: readonly string[]): Promise<number> {
  if (argv.includes("--help")) {
    process.stdout.write(helpText());
    return 0;
  }
  const config = parseFlags(argv);
  if (isModulePath(config.algorithm)) await loadUserAlgorithm(config.algorithm);
  const storeToken = process.env["FULGUR_STORE_TOKEN"];
  if (storeToken === undefined || storeToken === "") {
    throw new FulgurError("ERR_CONFIG", "FULGUR_STORE_TOKEN is not set; it holds the store's read-only token");
  }
  armFault(process.env["FULGUR_FAULT_AT"]);
  await startLogging("info");
  const stop = stopOnSignals();
  const patience = { limitMs: config.wedgeMinutes * 60_000, signal: stop.signal };
  // What a step must not leave half done goes on after a stop was asked for.
  const persistence = { limitMs: config.wedgeMinutes * 60_000 };
  const keySet = await readKeySet(config);
  const ownInferenceKey = ownTokens(keySet, config, ["trainer", "inference"]);
  const inferenceKey = async (): Promise<string> => process.env["FULGUR_INFERENCE_KEY"] || (await ownInferenceKey());
  const edge = edgeClient({ baseUrl: config.edgeUrl, token: ownTokens(keySet, config, ["trainer", "read"]) });
  const records = storeReader(connectStore({ url: config.storeUrl, token: storeToken }), config.tenant);
  const inference = inferenceFleet(
    urlListSchema.parse(config.inferenceUrl).map((baseUrl) => inferenceClient({ baseUrl, key: inferenceKey })),
    { warn: (message) => emit({ event: "warning", message }) },
  );
  try {
    const outcome = await trainRun({
      config,
      edge: withFaultPoints("edge", patient(edge, persistence)),
      records: withFaultPoints("records", patient(records, patience)),
      steadyRecords: withFaultPoints("records", patient(records, persistence)),
      inference: withFaultPoints("inference", patient(inference, persistence)),
      openEngine: async (start) => withFaultPoints("engine", await openEngine(config, start)),
      emit,
      metrics: runMetrics(config, { edge: patient(edge, persistence), emit }),
      now: () => performance.now(),
      pause: (ms) => sleep(ms, undefined, { signal: stop.signal }),
      signal: stop.signal,
    });
    return outcome === "paused" ? 3 : 0;
  } catch (error) {
    if (!stop.signal.aborted) throw error;
    log.info("run.stopped", { run: config.run });
    const within = { limitMs: config.drainSeconds * 1000 };
    await drain({
      config,
      edge: patient(edge, within),
      records: patient(records, within),
      now: () => performance.now(),
      pause: (ms) => sleep(ms),
    });
    return 0;
  }
}

/** Where the run's metrics go: journal and event files in its folder, the store, and Prometheus where it was asked for. */
function runMetrics(
  config: TrainerConfig,
  { edge, emit }: { readonly edge: Pick<EdgeClient, "putMetrics">; readonly emit: (event: RunEvent) => void },
): RunMetrics {
  const { run, policy, metricsPort } = config;
  const paths = runPaths(config);
  const alarms = new Alarms();
  return new RunMetrics({
    journal: new MetricsJournal(paths.metrics),
    sinks: [
      new StorePoints(edge, run),
      new TensorBoardFile(paths.tensorboard, { startedAt: Date.now(), pid: process.pid }),
      ...(metricsPort === undefined ? [] : [new PrometheusPage({ port: metricsPort, run, policy, alarms })]),
    ],
    alarms,
    warn: (message) => emit({ event: "warning", message }),
    clock: () => Date.now(),
  });
}

function stopOnSignals(): AbortController {
  const controller = new AbortController();
  for (const name of ["SIGTERM", "SIGINT"] as const) {
    process.on(name, () => {
      if (controller.signal.aborted) process.exit(1);
      controller.abort(new Stop(`${name} came`));
    });
  }
  return controller;
}

/** The installation's signing keys. @throws FulgurError ERR_CONFIG */
async function readKeySet({ stateDir }: TrainerConfig): Promise<KeySet> {
  const path = join(stateDir, "keys", "edge.json");
  try {
    return keySetSchema.parse(JSON.parse(await readFile(path, "utf8")));
  } catch (cause) {
    throw new FulgurError(
      "ERR_CONFIG",
      `${path} holds no signing keys; give the folder of an installation with --state-dir`,
      { cause },
    );
  }
}

/** Tokens that the trainer signs itself, each used until its last minute. */
function ownTokens(keySet: KeySet, { tenant }: TrainerConfig, scopes: readonly Scope[]): () => Promise<string> {
  let current: { readonly token: string; readonly expiresAt: number } | undefined;
  return async () => {
    if (current === undefined || current.expiresAt - Date.now() < 60_000) {
      current = await mintToken(keySet, { tenantId: tenant, scopes });
    }
    return current.token;
  };
}

function emit(event: RunEvent): void {
  process.stdout.write(`${JSON.stringify(event)}\n`);
  faultPoint(`event.${event.event}`);
  followSteps(event);
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  process.stderr.write(`${messageOf(error)}\n`);
  if (!(error instanceof FulgurError)) process.stderr.write(`${error instanceof Error ? (error.stack ?? "") : ""}\n`);
  process.exitCode = error instanceof FulgurError && error.code === "ERR_CONFIG" ? 2 : 1;
}
