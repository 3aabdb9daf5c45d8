/**
 * A worker thread that turns artifacts into decode graphs: reads, proves, merges, packs and encodes, so that neither
 * HTTP nor decoding waits for it. It keeps the packed base weights, which every adapter is merged into.
 */

import { join } from "node:path";
import { parentPort, workerData } from "node:worker_threads";
import * as z from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { readArchitecture, ropeTables, weightShapes } from "../model/architecture.ts";
import { readModelWeights } from "../model/safetensors.ts";
import { inferenceConfigSchema } from "./config.ts";
import { type Artifact, hashFile, readArtifact } from "./artifact.ts";
import { buildDecodeGraph } from "./decode-graph.ts";
import { createLoraMerger } from "./lora-merger.ts";
import { type PackedWeights, packWeights, withLora } from "./packed-weights.ts";
import { type LoadCommand, type LoaderCommand, type LoadEvent, movable } from "./protocol.ts";

if (parentPort === null) throw new Error("loader-worker.ts is started by the inference endpoint, as a worker thread");
const port = parentPort;

/** What the thread is started with. */
const startSchema = z.object({
  modelDir: z.string(),
  maxContextTokens: z.int().positive(),
  precision: inferenceConfigSchema.shape.precision,
});

await serve().catch((error: unknown) => send(failure(null, error)));

async function serve(): Promise<void> {
  const { modelDir, maxContextTokens, precision } = startSchema.parse(workerData);
  const architecture = await readArchitecture(modelDir);
  const contextTokens = Math.min(architecture.contextTokens, maxContextTokens);
  const base = packWeights(architecture, await readModelWeights(modelDir, weightShapes(architecture)));
  const rope = ropeTables(architecture, contextTokens);
  const merger = await createLoraMerger();
  let baseSha256: Promise<string> | undefined;

  const weightsOf = async (artifact: Artifact): Promise<PackedWeights> =>
    artifact.type === "adapter"
      ? merger.merge(withLora(architecture, base, artifact.lora))
      : packWeights(architecture, artifact.weights);

  const build = async ({ serial, version, path }: LoadCommand): Promise<void> => {
    const artifact =
      path === null
        ? null
        : await readArtifact(path, {
            name: version,
            architecture,
            baseSha256: () => (baseSha256 ??= hashFile(join(modelDir, "model.safetensors"))),
          });
    const weights = artifact === null ? base : await weightsOf(artifact);
    const graph = buildDecodeGraph(architecture, weights, { rope, precision });
    send({ type: "built", serial, graph, digest: artifact?.digest ?? "" }, movable(graph));
  };

  // One at a time: two at once would need twice the memory and be no sooner done.
  let last: Promise<void> = Promise.resolve();
  port.on("message", (command: LoaderCommand) => {
    if (command.type === "stop") process.exit();
    last = last
      .then(() => build(command))
      .catch((error: unknown) => {
        send(failure(command.serial, error));
      });
  });
  send({ type: "ready", architecture, contextTokens });
}

function send(event: LoadEvent, moved: readonly ArrayBuffer[] = []): void {
  port.postMessage(event, [...moved]);
}

function failure(serial: number | null, error: unknown): LoadEvent {
  const code = error instanceof FulgurError ? error.code : "ERR_INTERNAL";
  return { type: "failed", serial, code, message: messageOf(error) };
}
