import { mkdir, open, type FileHandle } from "node:fs/promises";
import { dirname } from "node:path";

/** A file that grows by whole records: one that was not written whole is taken back before the next. */
export class AppendFile {
  readonly #path: string;
  #file: FileHandle | undefined;
  #size = 0;
  #isTorn = false;

  constructor(path: string) {
    this.#path = path;
  }

  /**
   * Opens it, made with its folder where there is none.
   * @param keep bytes of what is there that are kept; all by default
   */
  async open(keep?: number): Promise<void> {
    await mkdir(dirname(this.#path), { recursive: true });
    this.#file = await open(this.#path, "a");
    const { size } = await this.#file.stat();
    this.#size = Math.min(size, keep ?? size);
    if (this.#size < size) await this.#file.truncate(this.#size);
  }

  /** @throws what the disk said; the file then ends with the record before */
  async append(record: Uint8Array): Promise<void> {
    if (this.#file === undefined) await this.open();
    const file = this.#file;
    if (file === undefined) return;
    if (this.#isTorn) await file.truncate(this.#size);
    this.#isTorn = true;
    await file.appendFile(record);
    this.#isTorn = false;
    this.#size += record.length;
  }

  async close(): Promise<void> {
    await this.#file?.close();
    this.#file = undefined;
  }
}
