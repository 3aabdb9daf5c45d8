/**
 * Preloaded into the process that is measured and into all its threads: notes how long each thread is busy, and how long
 * of that inside ONNX Runtime, and tells when asked, since one thread cannot read another's time.
 */

import { BroadcastChannel, isMainThread } from "node:worker_threads";
import ort from "onnxruntime-node";

/** Takes `ASK`, and a `ThreadTime` from each thread in answer. */
export const TIME_CHANNEL = "fulgur-thread-time";
export const ASK = "ask";

/** Of one thread since it began, in ms. */
export interface ThreadTime {
  readonly isMain: boolean;
  /** Not waiting for anything. */
  readonly busy: number;
  readonly inRuntime: number;
}

let inRuntime = 0;
// Declared as a factory, it is a class.
const { prototype } = ort.InferenceSession as unknown as { readonly prototype: ort.InferenceSession };
// oxlint-disable-next-line typescript/unbound-method -- it is called with the session it was asked of
const { run } = prototype;
Object.defineProperty(prototype, "run", {
  async value(this: ort.InferenceSession, ...args: Parameters<typeof run>) {
    const startedAt = performance.now();
    try {
      return await run.apply(this, args);
    } finally {
      inRuntime += performance.now() - startedAt;
    }
  },
});

const channel = new BroadcastChannel(TIME_CHANNEL);
channel.addEventListener("message", (event) => {
  if (!("data" in event) || event.data !== ASK) return;
  const time: ThreadTime = { isMain: isMainThread, busy: performance.eventLoopUtilization().active, inRuntime };
  // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a channel has no origin
  channel.postMessage(time);
});
// It must not keep a thread alive.
channel.unref();
