import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmdirSync } from "node:fs";
import { rm, statfs, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { startTestEdge } from "../support/edge.ts";
import { newLedger, NOTHING_WRONG } from "../support/ledger.ts";
import { startLoad, type Outcome } from "../support/load.ts";
import { until } from "../support/until.ts";

/**
 * The disk fills up under the store, and then under the edge's outbox too: calls go on as long as either can keep their
 * records, are refused with 503 and ERR_DISK where neither can, and go on when there is space again; nothing acknowledged is
 * lost. The disks are small file systems in memory; where none may be mounted (no root, another platform) this is skipped.
 */

const DISK_MEGABYTES = 24;
const mounted: string[] = [];
const storeDisk = mount();
const edgeDisk = mount();

afterAll(() => {
  for (const path of mounted) {
    // Lazily: a server that was just ended may not have let go of it yet.
    execFileSync("umount", ["-l", path]);
    rmdirSync(path);
  }
});

describe.skipIf(storeDisk === undefined || edgeDisk === undefined)("a disk that is full", () => {
  it(
    "under store and outbox has calls refused with ERR_DISK, loses none that was answered, and is forgotten once it has space",
    { timeout: 180_000 },
    async () => {
      if (storeDisk === undefined || edgeDisk === undefined) throw new Error("there are no disks");
      const ledger = newLedger();
      const edge = await startTestEdge({ storeParent: storeDisk, stateParent: edgeDisk });
      const clients = (["live", "train"] as const).map((mode) =>
        startLoad({
          ...{ ledger, mode, url: () => edge.url, paceMs: 30, name: `${mode}-${randomBytes(4).toString("hex")}` },
          token: async () => (await edge.rollout(mode, { caps: { maxCalls: 10_000, maxTokens: 1_000_000 } })).token,
        }),
      );
      const outcomes = (mode: string, from: number): Outcome[] =>
        clients.flatMap((client) => client.outcomes.filter((each) => each.mode === mode && each.startedAt >= from));
      const answered = (mode: string, from: number): number => outcomes(mode, from).filter(({ whole }) => whole).length;
      try {
        await until("calls are answered", () => answered("live", 0) >= 5 && answered("train", 0) >= 5);

        await fill(storeDisk);
        // The outbox takes over: live calls go on, train calls are told to come again.
        const storeFullAt = performance.now();
        await until(
          "a train call is refused",
          () => outcomes("train", storeFullAt).some(({ status }) => status === 503),
          60_000,
        );
        const outboxAt = performance.now();
        await until("live calls go on", () => answered("live", outboxAt) >= 10, 60_000);

        await fill(edgeDisk);
        const bothFullAt = performance.now();
        await until(
          "live calls are refused for the disk",
          () =>
            outcomes("live", bothFullAt).filter(({ status, code }) => status === 503 && code === "ERR_DISK").length >=
            5,
          60_000,
        );

        await free(edgeDisk);
        const outboxBackAt = performance.now();
        await until("live calls go on again", () => answered("live", outboxBackAt) >= 10, 60_000);

        await free(storeDisk);
        const backAt = performance.now();
        await until("train calls go on again", () => answered("train", backAt) >= 5, 60_000);
        await Promise.all(clients.map((client) => client.stop()));
        await until(
          "the outbox is empty",
          async () => /fulgur_outbox_units 0/.test(await (await fetch(`${edge.url}/metrics`)).text()),
          60_000,
        );

        const kinds = Map.groupBy(
          clients.flatMap((client) => client.outcomes),
          kindOf,
        );
        console.log(`disk full: ${[...kinds].map(([kind, same]) => `${kind} ${same.length}`).join(", ")}`);
        expect(
          [...kinds.keys()].filter(
            (kind) =>
              !/answered$|told ERR_(DISK|STORE) in its stream$|refused with 503 ERR_(DISK|STORE), Retry-After 1$/.test(
                kind,
              ),
          ),
        ).toEqual([]);
        expect(await ledger.audit(edge.store.db)).toEqual(NOTHING_WRONG);
      } finally {
        await free(edgeDisk);
        await free(storeDisk);
        await Promise.all(clients.map((client) => client.stop()));
        await edge.stop();
      }
    },
  );
});

function kindOf({ mode, whole, status, code, retryAfter, failure }: Outcome): string {
  if (whole) return `${mode} answered`;
  if (status === null) return `${mode} without an answer (${failure ?? "nothing said"})`;
  // A stream has begun by then, so it is told in an event.
  if (status === 200) return `${mode} told ${code ?? "nothing"} in its stream`;
  return `${mode} refused with ${status} ${code ?? "without a code"}, Retry-After ${retryAfter ?? "missing"}`;
}

/** A small file system of its own; undefined where that is not allowed. */
function mount(): string | undefined {
  const path = mkdtempSync(join(tmpdir(), "fulgur-disk-"));
  try {
    execFileSync("mount", ["-t", "tmpfs", "-o", `size=${DISK_MEGABYTES}m`, "none", path], { stdio: "pipe" });
  } catch {
    rmdirSync(path);
    return undefined;
  }
  mounted.push(path);
  return path;
}

const FILLER = "filler";

/** Takes all that is left, down to the last block. */
async function fill(path: string): Promise<void> {
  const { bavail, bsize } = await statfs(path);
  await writeFile(join(path, FILLER), Buffer.alloc(bavail * bsize)).catch(() => undefined);
  // What was freed or not counted meanwhile.
  for (let size = bsize * 64; size >= bsize; size /= 2) {
    await writeFile(join(path, FILLER), Buffer.alloc(size), { flag: "a" }).catch(() => undefined);
  }
}

async function free(path: string): Promise<void> {
  await rm(join(path, FILLER), { force: true });
}
