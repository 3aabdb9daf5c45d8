/** The end of a worker thread that runs graphs. */

import { once } from "node:events";
import type { Worker } from "node:worker_threads";

/** The last thing that a worker is told. */
export interface StopCommand {
  readonly type: "stop";
}

/**
 * Ends a worker that obeys a stop command, as soon as what it runs is done. Not by `terminate`: that ends a run of a
 * graph in its middle, and ONNX Runtime then aborts the process.
 */
export async function stopWorker(worker: Worker): Promise<void> {
  // One that is gone says so no more.
  if (worker.threadId === -1) return;
  const ended = once(worker, "exit");
  const stop: StopCommand = { type: "stop" };
  worker.postMessage(stop, []);
  await ended;
}
