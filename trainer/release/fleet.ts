import { FulgurError, messageOf } from "#shared/errors.ts";
import type { InferenceClient, InferenceServerClient } from "#shared/inference-client.ts";
import { logger } from "#shared/log.ts";
import { insist, mayPass } from "../patience.ts";

const log = logger("trainer");

export interface FleetOptions {
  /** Told when a server goes out of service or comes back. */
  readonly warn: (message: string) => void;
  /** How long a server in service may keep a release waiting before it is left out of it. */
  readonly patienceMs?: number;
}

/**
 * Several servers as one. A version is loaded and proven when every server in service has loaded and proven it; one that
 * cannot goes out of service, so that the release does not wait for it, and is tried again at the next version once it is
 * healthy. What a server lacks when it comes back the edge has it load (edge/proxy/servers.ts): no trainer need run then.
 *
 * Throws only where no server could: what a server refused for good, else what time may cure.
 */
export function inferenceFleet(
  servers: readonly InferenceServerClient[],
  { warn, patienceMs = 10_000 }: FleetOptions,
): InferenceClient {
  const [first, ...others] = servers;
  if (first === undefined) throw new FulgurError("ERR_CONFIG", "there is no inference server; give --inference-url");
  if (others.length === 0) return first;
  const out = new Set<InferenceServerClient>();

  function takeOut(server: InferenceServerClient, what: string, cause: unknown): void {
    if (out.has(server)) return;
    out.add(server);
    log.warn("server.out_of_service", { url: server.url, what, error: messageOf(cause) });
    warn(`inference at ${server.url} is out of service (${what}: ${messageOf(cause)}); the others go on`);
  }

  async function load(server: InferenceServerClient, name: string, folder: string): Promise<void> {
    const once = async (): Promise<void> => {
      // First, for it answers within seconds: a server that hangs would keep the release for as long as a load may take.
      if (!(await server.isHealthy())) throw away(server);
      await server.load(name, folder);
    };
    if (out.has(server)) return once();
    return insist("load", once, { limitMs: patienceMs });
  }

  /** Runs an action on several servers at once. @returns those that succeeded; at least one */
  async function onEach(
    among: readonly InferenceServerClient[],
    what: string,
    action: (server: InferenceServerClient) => Promise<void>,
  ): Promise<readonly InferenceServerClient[]> {
    const outcomes = await Promise.allSettled(among.map(action));
    const failures = outcomes.flatMap((outcome, i) => {
      const server = among[i];
      return outcome.status === "rejected" && server !== undefined
        ? [{ server, cause: outcome.reason as unknown }]
        : [];
    });
    for (const { server, cause } of failures) takeOut(server, what, cause);
    const failed = new Set(failures.map(({ server }) => server));
    const succeeded = among.filter((server) => !failed.has(server));
    if (succeeded.length > 0) return succeeded;
    const { cause } = failures.find((failure) => !mayPass(failure.cause)) ?? failures[0] ?? {};
    if (failures.length < 2) throw cause;
    const code = cause instanceof FulgurError ? cause.code : "ERR_UPSTREAM";
    const all = failures.map((failure) => messageOf(failure.cause)).join("; ");
    throw new FulgurError(code, `no inference server could ${what}: ${all}`, { cause });
  }

  return {
    async load(name, folder) {
      const loaded = await onEach(servers, `load ${name}`, (server) => load(server, name, folder));
      for (const server of loaded) {
        if (!out.delete(server)) continue;
        log.info("server.in_service", { url: server.url, name });
        warn(`inference at ${server.url} is back: it has loaded ${name}`);
      }
    },

    async prove(name) {
      const inService = servers.filter((server) => !out.has(server));
      // All of them out: it is what a repeated proof after a failed one meets, and may have passed.
      const among = inService.length > 0 ? inService : servers;
      for (const server of await onEach(among, `prove ${name}`, (server) => server.prove(name))) out.delete(server);
    },

    async unload(name) {
      const inService = servers.filter((server) => !out.has(server));
      const outcomes = await Promise.allSettled(inService.map((server) => server.unload(name)));
      for (const [i, outcome] of outcomes.entries()) {
        // It costs that server memory, and nobody a wrong answer.
        if (outcome.status === "rejected") {
          log.warn("version.not_unloaded", { url: inService[i]?.url, name, error: messageOf(outcome.reason) });
        }
      }
    },
  };
}

function away(server: InferenceServerClient): FulgurError {
  return new FulgurError("ERR_UPSTREAM", `inference at ${server.url} does not say that it is healthy; is it running?`);
}
