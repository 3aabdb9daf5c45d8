import { describe, expect, it } from "vitest";
import { FulgurError } from "#shared/errors.ts";
import { storeWriter, writerError } from "../../../edge/record/writer-client.ts";

/** As RPC delivers it: name, message and own properties, and no class. */
const crossed = (message: string, code?: string): Error =>
  Object.assign(new Error(message), code === undefined ? {} : { code });

describe("what a call to the writer was rejected with", () => {
  it.each([
    { thrown: crossed("refused", "ERR_CONFLICT"), code: "ERR_CONFLICT" },
    { thrown: crossed("the outbox cannot take more", "ERR_DISK"), code: "ERR_DISK" },
    // The runtime's own words, when it resets an object whose storage is full.
    { thrown: crossed("database or disk is full: SQLITE_FULL"), code: "ERR_DISK" },
    { thrown: crossed("disk I/O error: SQLITE_IOERR_WRITE"), code: "ERR_DISK" },
    { thrown: crossed("Durable Object reset because its code was updated."), code: "ERR_STORE" },
    // Not a code of the writer's.
    { thrown: crossed("who are you", "ERR_AUTH"), code: "ERR_STORE" },
  ])("$thrown.message is $code", async ({ thrown, code }) => {
    expect(writerError(thrown)).toBeInstanceOf(FulgurError);
    expect(writerError(thrown)).toMatchObject({ code, cause: thrown });
    const rejects = (): Promise<never> => Promise.reject(thrown);
    const writer = storeWriter({ append: rejects, transact: rejects, status: rejects });
    await expect(writer.append([])).rejects.toMatchObject({ code });
    await expect(writer.status()).rejects.toMatchObject({ code });
  });

  it("is left as it is where it is ours already, or no error at all", () => {
    const ours = new FulgurError("ERR_OVERLOADED", "slow down");
    expect(writerError(ours)).toBe(ours);
    expect(writerError(undefined)).toBeUndefined();
  });
});
