import { FulgurError } from "#shared/errors.ts";
import { startWorker, type Worker, type WorkerOptions } from "../../../../trainer/engine/torch/worker.ts";

const ENDED: ReadonlySet<string> = new Set(["ERR_INTERNAL", "ERR_PLATFORM"]);

/**
 * Workers that outlive their engines: a process takes seconds to import PyTorch, and a suite opens dozens of engines. One
 * that is free is opened anew, as a process that has just been started would be.
 */
export class RecycledWorkers {
  readonly #all = new Set<Worker>();
  readonly #free = new Map<string, Worker[]>();

  /** As `startWorker`, for `createTorchEngine`. */
  readonly start = async (options: WorkerOptions): Promise<Worker> => {
    const key = `${options.device} ${options.devices}`;
    const free = this.#free.get(key) ?? [];
    this.#free.set(key, free);
    const worker = free.pop() ?? (await startWorker(options));
    this.#all.add(worker);
    let isClosed = false;
    return {
      ask: (frame) =>
        worker.ask(frame).catch((error: unknown) => {
          // It ends at what it did not expect, and must not be the next one's.
          if (error instanceof FulgurError && ENDED.has(error.code)) isClosed = true;
          throw error;
        }),
      close: async () => {
        if (!isClosed) free.push(worker);
        isClosed = true;
      },
    };
  };

  async close(): Promise<void> {
    await Promise.all([...this.#all].map((worker) => worker.close()));
  }
}
