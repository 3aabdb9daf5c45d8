import { join } from "node:path";
import { FulgurError } from "#shared/errors.ts";
import type { ServePrecision } from "../../trainer/inference/config.ts";
import { spawnPart, type Part } from "../part.ts";
import { ROOT } from "../root.ts";

export interface InferencePartOptions {
  readonly port: number;
  /** Hugging Face folder of the base model. */
  readonly model: string;
  /** `<adapterDir>/<policy>/<version>/` are the versions that it finds by name. */
  readonly adapterDir: string;
  readonly precision: ServePrecision;
  /** Address or file of the public keys whose tokens may ask. */
  readonly jwks: string;
  readonly logDir: string;
}

const READY = /^inference listening on (http:\S+)/;

/** The inference endpoint as a supervised part. */
export function inferencePart({ port, model, adapterDir, precision, jwks, logDir }: InferencePartOptions): Part {
  const logPath = join(logDir, "inference.log");
  return {
    name: "inference",
    logPath,
    async start() {
      const running = await spawnPart({
        name: "inference",
        command: process.execPath,
        args: [
          join(ROOT, "trainer/inference/main.ts"),
          ...["--model", model],
          ...["--port", String(port)],
          ...["--adapter-dir", adapterDir],
          ...["--precision", precision],
          ...["--jwks", jwks],
        ],
        logPath,
        readyUrl: (line) => READY.exec(line)?.[1],
      });
      return { ...running, probe: () => probeHttp(`${running.url}/health`) };
    },
  };
}

/** Rejects when the address does not answer with success in time. The time is generous: the cores may all be busy. */
export async function probeHttp(url: string, timeoutMs = 10_000): Promise<void> {
  const response = await fetch(url, { signal: AbortSignal.timeout(timeoutMs) });
  await response.body?.cancel();
  if (!response.ok) throw new FulgurError("ERR_UPSTREAM", `${url} answered ${response.status}`);
}
