/** The worker's processes: started together, asked as one, and ended together, whatever happens to one of them. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import { Duplex, Readable } from "node:stream";
import * as z from "zod";
import { type ErrorCode, FulgurError, messageOf } from "#shared/errors.ts";
import { INSTALL, WORKER_FOLDER } from "./python.ts";
import { type Answer, decodeAnswer, encodeFrame, type Frame, FrameReader } from "./wire.ts";

/** What an engine knows of its worker. */
export interface Worker {
  /**
   * Sends a command and waits for its answer; one at a time.
   * @throws FulgurError what the worker says has gone wrong, or how it has ended
   */
  ask(frame: Frame): Promise<Answer>;
  /** Ends it; resolves once its processes are gone. */
  close(): Promise<void>;
}

/** How a worker is started. */
export interface WorkerOptions {
  readonly python: string;
  readonly device: "auto" | "cpu" | "cuda";
  /** Processes, a device each. */
  readonly devices: number;
  /** CPU threads of all of them. */
  readonly threads: number;
  /** Where other machines have processes of the same worker; the first one asks. */
  readonly among?: Machines;
}

/** One machine's place among several. */
export interface Machines {
  readonly nodes: number;
  /** 0 is the trainer's. */
  readonly node: number;
  /** `host:port` of the trainer's machine. */
  readonly rendezvous: string;
}

const CODES: ReadonlySet<string> = new Set<ErrorCode>([
  "ERR_CHECKPOINT",
  "ERR_CONFIG",
  "ERR_INTERNAL",
  "ERR_MODEL",
  "ERR_PLATFORM",
]);
const errorSchema = z.object({ code: z.string(), message: z.string(), out_of_memory: z.boolean().default(false) });
const SOCKET = 3;
const TAIL_CHARACTERS = 4000;
/** A rank ends with its socket, at once; one that has been stopped or hangs in a driver does not. */
const KILL_AFTER_MS = 5000;
const BLAME_AFTER_MS = 500;

/** Starts the processes; what they lack, the first `ask` tells. */
export async function startWorker(options: WorkerOptions): Promise<Worker> {
  return new WorkerGroup(options, await meetingPlace(options));
}

/**
 * Starts processes of a worker whose trainer is on another machine, and waits until the first of them has ended; the others
 * are ended with it.
 * @param signal ends them
 * @returns what ended it
 */
export async function lendRanks(
  options: WorkerOptions & { readonly among: Machines },
  signal: AbortSignal,
): Promise<FulgurError> {
  const ended = Promise.withResolvers<FulgurError>();
  const stop = (): void => ended.resolve(new FulgurError("ERR_INTERNAL", "stopped"));
  signal.addEventListener("abort", stop);
  const meeting = await meetingPlace(options);
  const ranks = Array.from(
    { length: options.devices },
    (_, at) => new Rank(options, { at, ...meeting }, { onAnswer: () => {}, onEnd: ended.resolve }),
  );
  if (signal.aborted) stop();
  const why = await ended.promise;
  signal.removeEventListener("abort", stop);
  await Promise.all(ranks.map((rank) => rank.end()));
  return why;
}

/** Where ranks find each other, and how many there are; alone, a rank looks for nobody. */
interface Meeting {
  readonly host: string;
  readonly port: number;
  /** The number of this machine's first rank. */
  readonly first: number;
  readonly count: number;
}

async function meetingPlace({ devices, among }: WorkerOptions): Promise<Meeting> {
  if (among === undefined) {
    return { host: "127.0.0.1", port: devices > 1 ? await freePort() : 0, first: 0, count: devices };
  }
  const { hostname, port } = new URL(`tcp://${among.rendezvous}`);
  const host = hostname.replace(/^\[(.*)\]$/, "$1");
  return { host, port: Number(port), first: among.node * devices, count: among.nodes * devices };
}

class WorkerGroup implements Worker {
  readonly #ranks: readonly Rank[];
  #waiting: PromiseWithResolvers<Answer> | null = null;
  #dead: FulgurError | null = null;
  readonly #causes: FulgurError[] = [];

  readonly #isAlone: boolean;

  constructor(options: WorkerOptions, meeting: Meeting) {
    this.#isAlone = meeting.count === 1;
    this.#ranks = Array.from(
      { length: options.devices },
      (_, at) =>
        new Rank(
          options,
          { at, ...meeting },
          { onAnswer: (body) => this.#hear(body), onEnd: (why) => this.#blame(why) },
        ),
    );
  }

  ask(frame: Frame): Promise<Answer> {
    if (this.#dead !== null) return Promise.reject(this.#dead);
    this.#waiting = Promise.withResolvers();
    this.#ranks[0]?.send(encodeFrame(frame));
    return this.#waiting.promise;
  }

  async close(): Promise<void> {
    this.#dead ??= new FulgurError("ERR_INTERNAL", "The engine is closed; make a new one.");
    await Promise.all(this.#ranks.map((rank) => rank.end()));
  }

  #hear(body: Buffer): void {
    try {
      const answer = decodeAnswer(body);
      const error = errorSchema.safeParse(answer.message["error"]);
      if (error.success && error.data.code === "ERR_INTERNAL" && !this.#isAlone) {
        this.#blame(toldError(error.data));
      } else if (error.success) this.#settle((waiting) => waiting.reject(toldError(error.data)));
      else this.#settle((waiting) => waiting.resolve(answer));
    } catch (cause) {
      this.#die(cause instanceof FulgurError ? cause : new FulgurError("ERR_INTERNAL", messageOf(cause), { cause }));
    }
  }

  /**
   * Notes what ended a rank. Where one of several has died, the others fail at what they were doing with it, and may be the
   * first to say so: after a moment it is the death that counts.
   */
  #blame(error: FulgurError): void {
    this.#causes.push(error);
    if (this.#causes.length > 1) return;
    const decide = (): void => this.#die(this.#causes.find(({ code }) => code !== "ERR_INTERNAL") ?? error);
    if (this.#isAlone) decide();
    else setTimeout(decide, BLAME_AFTER_MS);
  }

  /** One that is gone leaves the others waiting for it: they all end, and every later call says why. */
  #die(error: FulgurError): void {
    this.#dead ??= error;
    const dead = this.#dead;
    this.#settle((waiting) => waiting.reject(dead));
    for (const rank of this.#ranks) void rank.end();
  }

  #settle(how: (waiting: PromiseWithResolvers<Answer>) => void): void {
    const waiting = this.#waiting;
    this.#waiting = null;
    if (waiting !== null) how(waiting);
  }
}

interface RankListener {
  readonly onAnswer: (body: Buffer) => void;
  readonly onEnd: (why: FulgurError) => void;
}

/** One process. Its output is only looked at when it ends without a word: libraries write there what they like. */
class Rank {
  readonly #child: ChildProcess;
  readonly #socket: Duplex;
  readonly #name: string;
  readonly #ended: Promise<void>;
  #tail = "";
  #told: FulgurError | null = null;

  constructor(
    { python, device, devices, threads }: WorkerOptions,
    place: Meeting & { readonly at: number },
    { onAnswer, onEnd }: RankListener,
  ) {
    const rank = place.first + place.at;
    this.#name = place.count === 1 ? "The torch worker" : `Rank ${rank} of ${place.count} of the torch worker`;
    this.#child = spawn(python, ["-m", "worker", "--device", device], {
      stdio: ["ignore", "pipe", "pipe", "pipe"],
      env: environment(place, Math.max(1, Math.floor(threads / devices))),
    });
    const socket = this.#child.stdio[SOCKET];
    if (!(socket instanceof Duplex)) throw new FulgurError("ERR_PLATFORM", "The torch worker's socket is missing.");
    this.#socket = socket;
    this.#ended = once(this.#child, "close").then(
      () => undefined,
      () => undefined,
    );
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      if (stream instanceof Readable) {
        stream.setEncoding("utf8");
        stream.on("data", (text: string) => (this.#tail = (this.#tail + text).slice(-TAIL_CHARACTERS)));
      }
    }
    const reader = new FrameReader();
    socket.on("data", (chunk: Buffer) => {
      for (const body of reader.push(chunk)) {
        if (rank === 0) onAnswer(body);
        // Only the first answers commands; from the others comes what they end with.
        else this.#told ??= lastWord(body);
      }
    });
    // How it ended, its exit tells.
    socket.on("error", () => {});
    this.#child.on("error", (cause) => onEnd(notStarted(python, cause)));
    this.#child.on("close", (code, signal) => onEnd(this.#told ?? this.#endOf(code, signal)));
  }

  send(parts: readonly Uint8Array[]): void {
    this.#socket.cork();
    for (const part of parts) this.#socket.write(part);
    this.#socket.uncork();
  }

  /** Closes its socket, at which it ends. */
  async end(): Promise<void> {
    this.#socket.destroy();
    const patience = setTimeout(() => this.#child.kill("SIGKILL"), KILL_AFTER_MS);
    await this.#ended;
    clearTimeout(patience);
  }

  #endOf(code: number | null, signal: NodeJS.Signals | null): FulgurError {
    const again = "Start the trainer again: it goes on from its last checkpoint.";
    if (signal === "SIGKILL") {
      return new FulgurError(
        "ERR_PLATFORM",
        `${this.#name} was killed (SIGKILL), as systems do that run out of memory. ${again} If it happens again, ${LESS_MEMORY}.`,
      );
    }
    const lines = this.#tail.split("\n").filter((line) => line.trim() !== "");
    const said = lines.length === 0 ? "" : ` Its last lines:\n  ${lines.slice(-4).join("\n  ")}\n`;
    const how = signal === null ? `exit code ${code}` : signal;
    if (/No module named|ModuleNotFoundError/.test(said)) {
      return new FulgurError("ERR_PLATFORM", `${this.#name} could not start.${said}${SEE_DOCTOR}`);
    }
    return new FulgurError("ERR_INTERNAL", `${this.#name} has ended (${how}).${said} ${again}`);
  }
}

const LESS_MEMORY =
  "lower --microbatch-tokens, turn on --gradient-checkpointing, take --precision bf16, or more --devices";
const SEE_DOCTOR = `npx fulgur doctor --engine torch says what is missing; it is installed by: ${INSTALL}`;

function toldError({ code, message, out_of_memory: outOfMemory }: z.infer<typeof errorSchema>): FulgurError {
  const advice = outOfMemory
    ? ` To need less, ${LESS_MEMORY}; then start the trainer again: it goes on from its last checkpoint.`
    : code === "ERR_PLATFORM"
      ? ` ${SEE_DOCTOR}`
      : "";
  return new FulgurError(CODES.has(code) ? (code as ErrorCode) : "ERR_INTERNAL", `${message}${advice}`);
}

function lastWord(body: Buffer): FulgurError | null {
  const error = errorSchema.safeParse(decodeAnswer(body).message["error"]);
  return error.success ? toldError(error.data) : null;
}

function notStarted(python: string, cause: Error): FulgurError {
  return new FulgurError("ERR_PLATFORM", `Cannot start ${python} (${cause.message}). ${SEE_DOCTOR}`, { cause });
}

function environment(
  { host, port, first, count, at }: Meeting & { readonly at: number },
  threads: number,
): Record<string, string | undefined> {
  const loopback = process.platform === "darwin" ? "lo0" : "lo";
  const among =
    count === 1
      ? {}
      : {
          RANK: String(first + at),
          LOCAL_RANK: String(at),
          WORLD_SIZE: String(count),
          MASTER_ADDR: host,
          MASTER_PORT: String(port),
          // Where nobody is elsewhere nothing is to be heard elsewhere.
          ...(host === "127.0.0.1" ? { GLOO_SOCKET_IFNAME: process.env["GLOO_SOCKET_IFNAME"] ?? loopback } : {}),
        };
  return {
    ...process.env,
    ...among,
    PYTHONPATH: WORKER_FOLDER,
    PYTHONSAFEPATH: "1",
    PYTHONDONTWRITEBYTECODE: "1",
    OMP_NUM_THREADS: String(threads),
    HF_HUB_OFFLINE: "1",
    HF_HUB_DISABLE_PROGRESS_BARS: "1",
    TRANSFORMERS_VERBOSITY: "error",
  };
}

/** A port that nobody listens on just now, for the ranks to find each other. */
async function freePort(): Promise<number> {
  const server = createServer();
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  server.close();
  await once(server, "close");
  return typeof address === "object" && address !== null ? address.port : 0;
}
