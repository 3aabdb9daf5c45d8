/** ONNX Runtime sessions as this engine wants them. */

import ort from "onnxruntime-node";
import { FulgurError, messageOf } from "#shared/errors.ts";

export { Tensor } from "onnxruntime-node";

/**
 * Opens a session on the CPU.
 * @param threads of this session; 1 runs on the caller's thread alone
 * @throws FulgurError ERR_PLATFORM when the runtime refuses the graph or cannot be loaded
 */
export async function openSession(model: Uint8Array, threads: number): Promise<ort.InferenceSession> {
  try {
    return await ort.InferenceSession.create(model, {
      executionProviders: ["cpu"],
      intraOpNumThreads: threads,
      interOpNumThreads: 1,
      // Constants that folding leaves unused are reported as warnings, thousands of them.
      logSeverityLevel: 3,
      // Batch shapes vary from run to run, so planned memory patterns would pile up.
      enableMemPattern: false,
      // Spinning threads take the cores of the processes beside us.
      extra: {
        session: { intra_op: { allow_spinning: "0" } },
        optimization: { disable_specified_optimizers: "GemmTransposeFusion" },
      },
    });
  } catch (cause) {
    throw new FulgurError(
      "ERR_PLATFORM",
      `ONNX Runtime cannot run the training graph (${messageOf(cause)}). Check that onnxruntime-node supports this platform.`,
      { cause },
    );
  }
}
