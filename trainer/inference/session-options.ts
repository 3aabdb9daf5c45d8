/** How ONNX Runtime sessions are made in worker threads. */

import type { InferenceSession } from "onnxruntime-node";

/**
 * One thread and no spinning: a second thread of the same session, or one that spins while it waits, halves the speed
 * as soon as anything else wants the processor.
 */
export const SESSION_OPTIONS: InferenceSession.SessionOptions = {
  intraOpNumThreads: 1,
  interOpNumThreads: 1,
  executionMode: "sequential",
  // Our graphs are written with the runtime's fused operators: looking for more finds nothing, and takes a version's
  // loading a third longer.
  graphOptimizationLevel: "disabled",
  // Errors only: what is below is about the graph and was decided when it was written.
  logSeverityLevel: 3,
  extra: { session: { intra_op: { allow_spinning: "0" } } },
};
