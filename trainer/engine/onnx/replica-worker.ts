/** Entry of a replica's worker thread: ONNX Runtime's runs are synchronous and would block the trainer's own thread. */

import { parentPort, workerData } from "node:worker_threads";
import { messageOf, FulgurError } from "#shared/errors.ts";
import type { StopCommand } from "../../stop-worker.ts";
import type { ReplicaReply, ReplicaRequest, ReplicaResult } from "./pool.ts";
import { Replica, type ReplicaSetup } from "./replica.ts";

// Written by `pool.ts` alone, whose type this is.
const setup = workerData as ReplicaSetup;
const port = parentPort;
if (port === null) throw new FulgurError("ERR_INTERNAL", "replica-worker.ts runs only as a worker thread.");

const replica = new Replica(setup);

async function answer(request: ReplicaRequest): Promise<ReplicaResult> {
  if (request.type === "warm") {
    await replica.warm(request.pass);
    return null;
  }
  if (request.type === "reduce") return replica.reduce();
  if (request.type === "update") {
    await replica.update(request.options);
    return null;
  }
  const scores = [];
  for (const microbatch of request.microbatches) {
    scores.push(request.type === "score" ? await replica.score(microbatch) : await replica.backward(microbatch));
  }
  return scores;
}

let busy: Promise<unknown> = Promise.resolve();

// One request is in flight at a time: the pool waits for the reply, unless it stops the worker.
port.on("message", (request: ReplicaRequest | StopCommand) => {
  if (request.type === "stop") {
    void busy.then(() => process.exit());
    return;
  }
  busy = answer(request).then(
    (result) => port.postMessage({ ok: true, result } satisfies ReplicaReply),
    (error: unknown) => {
      const code = error instanceof FulgurError ? error.code : "ERR_INTERNAL";
      port.postMessage({ ok: false, code, message: messageOf(error) } satisfies ReplicaReply);
    },
  );
});
