/** HTTP for the inference service: routes, and the beginning and end of the process's listening. */

import { createServer, type IncomingMessage, type Server } from "node:http";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { parseServedName, type Scope } from "#shared/words.ts";
import { answerChat } from "./chat.ts";
import { answerCompletion } from "./completions.ts";
import type { InferenceConfig } from "./config.ts";
import { Connections } from "./connections.ts";
import { Exchange } from "./exchange.ts";
import {
  chatRequestSchema,
  completionRequestSchema,
  loadRequestSchema,
  parseRequest,
  unloadRequestSchema,
} from "./requests.ts";
import { InferenceService } from "./service.ts";
import { mayName, openTokenGate, type TokenGate } from "./token-gate.ts";

/** A listening endpoint. */
export interface InferenceServer {
  /** Such as `http://127.0.0.1:8788`. */
  readonly url: string;
  /** Stops accepting, gives running answers their time, and frees everything. */
  close(): Promise<void>;
}

/** What the server needs beside its settings. */
export interface ServerHooks {
  /** Called when a decode thread died: answers fail from then on. */
  readonly fatal: (error: Error) => void;
}

/**
 * Loads the model and listens.
 * @throws FulgurError ERR_MODEL when the model cannot be used, ERR_PORT_TAKEN when the port is
 */
export async function startInferenceServer(config: InferenceConfig, hooks: ServerHooks): Promise<InferenceServer> {
  const gate = await gateOf(config);
  let isHealthy = true;
  const service = await InferenceService.start({
    modelDir: config.model,
    baseName: config.servedModelName,
    adapterDir: config.adapterDir ?? null,
    precision: config.precision,
    threads: config.threads,
    maxSequences: config.maxSequences,
    maxWaiting: config.maxWaiting,
    maxVersions: config.maxVersions,
    maxContextTokens: config.maxContextTokens,
    prefixCacheBytes: config.prefixCacheMb * 2 ** 20,
    continuationTokens: config.continuationTokens,
    prefillTokensPerStep: config.prefillTokensPerStep,
    fatal: (error) => {
      isHealthy = false;
      hooks.fatal(error);
    },
  });
  const maxBodyBytes = Math.floor(config.maxBodyMb * 2 ** 20);
  const server = createServer((request, response) => {
    void handle(service, new Exchange(request, response), request, { maxBodyBytes, isHealthy: () => isHealthy, gate });
  });
  // Agents keep connections between the turns of a rollout; Node's five seconds would race with their next request.
  server.keepAliveTimeout = 120_000;
  const connections = new Connections(server);
  try {
    await listen(server, config);
  } catch (error) {
    await service.close();
    throw error;
  }
  const address = server.address();
  const port = typeof address === "object" && address !== null ? address.port : config.port;
  const host = config.host.includes(":") ? `[${config.host}]` : config.host;
  return {
    url: `http://${host}:${port}`,
    async close() {
      const closed = connections.close(config.drainSeconds * 1000);
      server.close();
      await closed;
      await service.close();
    },
  };
}

interface Limits {
  readonly maxBodyBytes: number;
  readonly isHealthy: () => boolean;
  /** Null: anybody may ask. */
  readonly gate: TokenGate | null;
}

/** @throws FulgurError ERR_CONFIG when an address that others can reach would be open to all of them by omission */
async function gateOf({ host, jwks }: InferenceConfig): Promise<TokenGate | null> {
  if (jwks !== undefined && jwks !== "none") return openTokenGate(jwks);
  if (jwks === "none" || host === "localhost" || host === "::1" || host.startsWith("127.")) return null;
  throw new FulgurError(
    "ERR_CONFIG",
    `--host ${host} can be reached from elsewhere: give --jwks with the edge's keys, or --jwks none where only the edge can reach it.`,
  );
}

async function handle(
  service: InferenceService,
  exchange: Exchange,
  { method = "GET", url = "/", headers }: IncomingMessage,
  limits: Limits,
): Promise<void> {
  try {
    const { pathname } = new URL(url, "http://endpoint");
    const path = pathname.length > 1 ? pathname.replace(/\/$/, "") : pathname;
    const route = ROUTES[path];
    if (route === undefined) {
      throw new FulgurError("ERR_NOT_FOUND", `There is no ${path} here.`);
    }
    if (route.method !== method) {
      exchange.json(
        405,
        {
          error: {
            message: `${path} takes ${route.method}, not ${method}.`,
            type: "invalid_request_error",
            param: null,
            code: "method_not_allowed",
          },
        },
        { allow: route.method },
      );
      return;
    }
    const caller =
      route.scopes === undefined ? undefined : await limits.gate?.check(headers.authorization, route.scopes);
    const mayUse = (name: string): boolean => caller === undefined || mayName(caller, name);
    await route.run(service, exchange, { maxBodyBytes: limits.maxBodyBytes, isHealthy: limits.isHealthy, mayUse });
  } catch (error) {
    if (!(error instanceof FulgurError)) process.stderr.write(`inference: ${method} failed: ${messageOf(error)}\n`);
    exchange.fail(error);
  }
}

interface Route {
  readonly method: "GET" | "POST";
  /** A token needs one of them; absent: open to all. */
  readonly scopes?: readonly Scope[];
  run(service: InferenceService, exchange: Exchange, call: RouteCall): Promise<void> | void;
}

interface RouteCall extends Pick<Limits, "maxBodyBytes" | "isHealthy"> {
  /** Whether a version of that name is the caller's to ask for, to load and to unload. */
  readonly mayUse: (name: string) => boolean;
}

/** Another tenant's version is, to whoever asks, one that does not exist. @throws FulgurError ERR_NOT_FOUND */
function requireOwn({ mayUse }: RouteCall, name: string): void {
  if (mayUse(name)) return;
  throw new FulgurError("ERR_NOT_FOUND", `The model "${name}" does not exist here, or is not the caller's.`);
}

/** The base, unless it is served as a version, which is somebody's. */
function isEverybodys({ baseName }: InferenceService, name: string): boolean {
  return name === baseName && parseServedName(name) === undefined;
}

const ROUTES: Readonly<Record<string, Route>> = {
  "/v1/chat/completions": {
    method: "POST",
    scopes: ["inference"],
    run: async (service, exchange, call) => {
      const request = parseRequest(chatRequestSchema, await exchange.body(call.maxBodyBytes));
      if (!isEverybodys(service, request.model)) requireOwn(call, request.model);
      await answerChat(service, request, exchange);
    },
  },
  "/v1/completions": {
    method: "POST",
    scopes: ["inference"],
    run: async (service, exchange, call) => {
      const request = parseRequest(completionRequestSchema, await exchange.body(call.maxBodyBytes));
      if (!isEverybodys(service, request.model)) requireOwn(call, request.model);
      await answerCompletion(service, request, exchange);
    },
  },
  "/v1/models": { method: "GET", scopes: ["inference", "trainer"], run: listModels },
  "/v1/load_lora_adapter": {
    method: "POST",
    scopes: ["trainer"],
    run: async (service, exchange, call) => {
      const body = await exchange.body(call.maxBodyBytes);
      const { lora_name: name, lora_path: path } = parseRequest(loadRequestSchema, body);
      requireOwn(call, name);
      if (name === service.baseName) {
        throw new FulgurError("ERR_INVALID_REQUEST", `lora_name: "${name}" is the base model; choose another name.`);
      }
      await service.versions.load(name, path);
      exchange.text(200, `Success: LoRA adapter '${name}' added successfully.`);
    },
  },
  "/v1/unload_lora_adapter": {
    method: "POST",
    scopes: ["trainer"],
    run: async (service, exchange, call) => {
      const { lora_name: name } = parseRequest(unloadRequestSchema, await exchange.body(call.maxBodyBytes));
      requireOwn(call, name);
      await service.versions.unload(name);
      exchange.text(200, `Success: LoRA adapter '${name}' removed successfully.`);
    },
  },
  "/health": {
    method: "GET",
    run: (_, exchange, { isHealthy }) => {
      exchange.text(isHealthy() ? 200 : 503, "");
    },
  },
  "/metrics": {
    method: "GET",
    run: (service, exchange) => {
      exchange.text(200, service.metrics.render(service.gauges()), "text/plain; version=0.0.4; charset=utf-8");
    },
  },
  "/version": {
    method: "GET",
    run: (_, exchange) => {
      exchange.json(200, { version: "fulgur-0.1.0" });
    },
  },
};

function listModels(service: InferenceService, exchange: Exchange, { mayUse }: RouteCall): void {
  const { baseName, model } = service;
  const versions = service.versions.list().filter(({ name }) => isEverybodys(service, name) || mayUse(name));
  exchange.json(200, {
    object: "list",
    data: versions.map(({ name, path, createdSeconds }) => ({
      id: name,
      object: "model",
      created: createdSeconds,
      owned_by: "fulgur",
      root: path ?? name,
      parent: name === baseName ? null : baseName,
      max_model_len: model.contextTokens,
    })),
  });
}

function listen(server: Server, { host, port }: InferenceConfig): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", (cause: NodeJS.ErrnoException) => {
      reject(
        cause.code === "EADDRINUSE"
          ? new FulgurError("ERR_PORT_TAKEN", `Port ${port} on ${host} is taken; choose another with --port.`, {
              cause,
            })
          : new FulgurError("ERR_CONFIG", `Cannot listen on ${host}:${port}: ${cause.message}`, { cause }),
      );
    });
    server.listen(port, host, () => {
      resolve();
    });
  });
}
