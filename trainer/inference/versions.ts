/**
 * Which policy versions are loaded, by name. A name stands for one artifact for ever; a request holds the version it
 * began with until it ends; idle versions give way to newer ones and come back by name when they are asked for.
 */

import { access } from "node:fs/promises";
import { isAbsolute, join, resolve } from "node:path";
import { FulgurError } from "#shared/errors.ts";

/** A version as `/v1/models` shows it. */
export interface VersionInfo {
  readonly name: string;
  /** Folder of the artifact; null for the base model. */
  readonly path: string | null;
  /** Unix seconds. */
  readonly createdSeconds: number;
}

/** The right to sample from a version until `release` is called. */
export interface VersionLease {
  readonly name: string;
  release(): void;
}

/** One right for several answers: it is released when each of them has released it once. */
export function sharedLease(lease: VersionLease, holders: number): VersionLease {
  let left = holders;
  return {
    name: lease.name,
    release: () => {
      if (--left === 0) lease.release();
    },
  };
}

/** What the registry needs of the rest. */
export interface VersionBackend {
  /** Proves the artifact and makes it answer. @returns its digest @throws FulgurError and leaves nothing loaded */
  load(name: string, path: string | null): Promise<string>;
  unload(name: string): Promise<void>;
  /** Digest of what lies in a folder now. @throws FulgurError ERR_CHECKPOINT when there is no artifact */
  digest(path: string): Promise<string>;
}

/** Bounds and places. */
export interface VersionsOptions {
  /** Name of the base model. */
  readonly baseName: string;
  /** Where `name@N` is looked for, as `<adapterDir>/name/N`; null: only what was loaded explicitly. */
  readonly adapterDir: string | null;
  /** Loaded versions beside the base; idle ones beyond it are dropped, the least recently used first. */
  readonly maxVersions: number;
  readonly nowMs: () => number;
}

interface Entry {
  readonly info: VersionInfo;
  readonly ready: Promise<void>;
  isReady: boolean;
  running: number;
  lastUsedMs: number;
  /** Set once it is to go; resolves when it is gone. */
  leaving: Promise<void> | null;
  /** Told when the last request ends. */
  idle: PromiseWithResolvers<void> | null;
}

/** The registry. */
export class Versions {
  readonly #backend: VersionBackend;
  readonly #options: VersionsOptions;
  readonly #entries = new Map<string, Entry>();
  /** Every artifact that ever answered to a name, also after it was unloaded. */
  readonly #known = new Map<string, { readonly path: string | null; readonly digest: string }>();

  constructor(backend: VersionBackend, options: VersionsOptions) {
    this.#backend = backend;
    this.#options = options;
  }

  /** Loaded versions, the base first. */
  list(): VersionInfo[] {
    return [...this.#entries.values()]
      .filter(({ isReady, leaving }) => isReady && leaving === null)
      .map(({ info }) => info);
  }

  /** Requests that hold each version. */
  running(): ReadonlyMap<string, number> {
    return new Map([...this.#entries].map(([name, { running }]) => [name, running]));
  }

  /**
   * Holds a version, loading it if its folder is where its name says.
   * @throws FulgurError ERR_NOT_FOUND when there is no such version, ERR_CHECKPOINT when its artifact is not valid
   */
  async acquire(name: string): Promise<VersionLease> {
    for (;;) {
      const entry = this.#entries.get(name);
      if (entry === undefined) {
        await this.#loadFrom(name, await this.#locate(name));
        continue;
      }
      if (entry.leaving !== null) {
        await entry.leaving;
        continue;
      }
      // Counted before it is ready, so that it cannot be dropped in between.
      entry.running++;
      entry.lastUsedMs = this.#options.nowMs();
      try {
        await entry.ready;
      } catch (error) {
        entry.running--;
        throw error;
      }
      return { name, release: once(() => this.#release(entry)) };
    }
  }

  /**
   * Loads a version by name.
   * @param path folder of its artifact; relative ones lie in the adapter folder
   * @throws FulgurError ERR_CHECKPOINT when the artifact is not valid, or is another one than this name had before
   */
  async load(name: string, path: string | null): Promise<VersionInfo> {
    const { adapterDir } = this.#options;
    const folder = path === null || isAbsolute(path) ? path : resolve(adapterDir ?? ".", path);
    const entry = this.#entries.get(name);
    if (entry !== undefined && entry.leaving === null) {
      await entry.ready;
      const known = this.#known.get(name);
      const digest = folder === null ? "" : await this.#backend.digest(folder);
      if (digest === known?.digest) return entry.info;
      throw reused(name, known?.digest ?? "", digest);
    }
    if (entry?.leaving) await entry.leaving;
    return this.#loadFrom(name, folder);
  }

  /**
   * Drops a version after its last request; new requests for it wait and then load it again.
   * @throws FulgurError ERR_NOT_FOUND when it is not loaded
   */
  async unload(name: string): Promise<void> {
    const entry = this.#entries.get(name);
    if (entry === undefined || name === this.#options.baseName) {
      throw new FulgurError("ERR_NOT_FOUND", `No version "${name}" is loaded; GET /v1/models lists those that are.`);
    }
    // Without a pause where there need be none, so that no request slips in before it leaves.
    if (!entry.isReady) await entry.ready;
    await this.#drop(entry);
  }

  async #locate(name: string): Promise<string | null> {
    const known = this.#known.get(name);
    if (known?.path === null || (known !== undefined && (await exists(known.path)))) return known.path;
    if (known !== undefined) {
      throw new FulgurError(
        "ERR_NOT_FOUND",
        `The model "${name}" was here and its folder ${known.path} is gone: the trainer keeps the newest versions, the best and those in use (--keep-versions). Ask for another version, or put the folder back.`,
      );
    }
    const { adapterDir } = this.#options;
    // The name becomes a path, so it may hold nothing that leads out of the folder.
    const parts = /^(?<policy>[A-Za-z0-9~][A-Za-z0-9._~-]*)@(?<number>\d+)$/.exec(name)?.groups;
    if (adapterDir !== null && parts !== undefined) {
      const folder = join(adapterDir, parts["policy"] ?? "", parts["number"] ?? "");
      if (await exists(folder)) return folder;
    }
    throw new FulgurError(
      "ERR_NOT_FOUND",
      `The model "${name}" does not exist here; load it with POST /v1/load_lora_adapter, or see GET /v1/models.`,
    );
  }

  async #loadFrom(name: string, path: string | null): Promise<VersionInfo> {
    // Two requests for a version that is not loaded: the second one finds the first one's entry.
    const existing = this.#entries.get(name);
    if (existing !== undefined) {
      await existing.ready;
      return existing.info;
    }
    const nowMs = this.#options.nowMs();
    const loading = this.#loadProven(name, path);
    const entry: Entry = {
      info: { name, path, createdSeconds: Math.floor(nowMs / 1000) },
      ready: loading,
      isReady: false,
      running: 0,
      lastUsedMs: nowMs,
      leaving: null,
      idle: null,
    };
    this.#entries.set(name, entry);
    try {
      await loading;
    } catch (error) {
      this.#entries.delete(name);
      throw error;
    }
    entry.isReady = true;
    this.#makeRoom(entry);
    return entry.info;
  }

  async #loadProven(name: string, path: string | null): Promise<void> {
    const digest = await this.#backend.load(name, path);
    const known = this.#known.get(name);
    if (known !== undefined && known.digest !== digest) {
      await this.#backend.unload(name);
      throw reused(name, known.digest, digest);
    }
    this.#known.set(name, { path, digest });
  }

  #release(entry: Entry): void {
    entry.running--;
    entry.lastUsedMs = this.#options.nowMs();
    if (entry.running > 0) return;
    entry.idle?.resolve();
    this.#makeRoom(null);
  }

  #makeRoom(keep: Entry | null): void {
    const loaded = [...this.#entries.values()].filter(
      ({ info, leaving, isReady }) => isReady && leaving === null && info.name !== this.#options.baseName,
    );
    const idle = loaded
      .filter((entry) => entry.running === 0 && entry !== keep)
      .toSorted((a, b) => a.lastUsedMs - b.lastUsedMs);
    for (const entry of idle.slice(0, Math.max(0, loaded.length - this.#options.maxVersions))) void this.#drop(entry);
  }

  #drop(entry: Entry): Promise<void> {
    entry.leaving ??= (async () => {
      if (entry.running > 0) {
        entry.idle = Promise.withResolvers();
        await entry.idle.promise;
      }
      try {
        await this.#backend.unload(entry.info.name);
      } finally {
        this.#entries.delete(entry.info.name);
      }
    })();
    return entry.leaving;
  }
}

function reused(name: string, before: string, now: string): FulgurError {
  const short = (digest: string): string => (digest === "" ? "the base model" : `artifact ${digest.slice(0, 12)}`);
  return new FulgurError(
    "ERR_CHECKPOINT",
    `"${name}" is ${short(before)} and was now to be ${short(now)}; a version's name is never reused. Publish it under the next number.`,
  );
}

function once(action: () => void): () => void {
  let isDone = false;
  return () => {
    if (isDone) return;
    isDone = true;
    action();
  };
}

async function exists(path: string): Promise<boolean> {
  try {
    await access(path);
    return true;
  } catch {
    return false;
  }
}
