import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import { z } from "zod";
import { bookFlight, useTool, type RunTool } from "../../edge/agents/flight/agent.ts";
import { agentWorker } from "../../edge/agents/wrapper.ts";
import { Random } from "../../trainer/engine/random.ts";

/**
 * The flight agent at an address, with tools that take as long as those of real agents: it waits for each, and the model's
 * server has nothing to do for it meanwhile.
 */
export interface SlowFlight {
  /** For the agent's settings. */
  readonly url: string;
  stop(): Promise<void>;
}

/** Of the logarithm: one call in six takes over 2.2 medians, one in a hundred the longest. */
const SPREAD = 0.8;
/** In medians. */
export const LONGEST = 20 / 3;

const inputSchema = z.object({ message: z.string(), world: z.int() });

/** @param medianMs of a tool's time, in milliseconds; the times themselves come of the seed */
export async function startSlowFlight(medianMs: number, seed: number): Promise<SlowFlight> {
  const random = Random.seeded(seed);
  const slowly: RunTool = async (...call) => {
    await pause(medianMs * mediansOf(random));
    return useTool(...call);
  };
  const agent = agentWorker((input, env) => bookFlight(inputSchema.parse(input), env, slowly));

  const server = createServer((request, response) => {
    void (async () => {
      const pieces: Buffer[] = [];
      for await (const piece of request) pieces.push(piece as Buffer);
      const headers = new Headers();
      for (const name of ["authorization", "x-llm-base-url"]) headers.set(name, String(request.headers[name]));
      const asked = new Request(`http://agent.internal${request.url}`, {
        method: request.method ?? "POST",
        headers,
        body: Buffer.concat(pieces),
      });
      const answer = await agent.fetch(asked, {});
      response.writeHead(answer.status, { "content-type": "application/json" }).end(await answer.text());
    })().catch(() => response.destroy());
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/run`,
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}

/** Log-normal (Box and Muller), cut off at the longest. */
function mediansOf(random: Random): number {
  const normal = Math.sqrt(-2 * Math.log(1 - random.next())) * Math.cos(2 * Math.PI * random.next());
  return Math.min(LONGEST, Math.exp(SPREAD * normal));
}
