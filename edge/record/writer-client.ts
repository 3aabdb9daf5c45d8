import { FulgurError, type ErrorCode } from "#shared/errors.ts";
import type { Row, Statement, StoreWriter, Writable, WriterStatus } from "#shared/store/statement.ts";

/** What a stub of the Durable Object offers. */
export interface WriterStub {
  append(units: Writable[][]): Promise<void>;
  transact(statements: Statement[]): Promise<Row[][]>;
  status(): Promise<WriterStatus>;
}

/**
 * The writer behind a Durable Object stub. RPC keeps an error's name, message and code but not its class; here it is a
 * FulgurError again.
 */
export function storeWriter(stub: WriterStub): StoreWriter {
  return {
    append: (units) => asked(() => stub.append(units.map((unit) => [...unit]))),
    transact: (statements) => asked(() => stub.transact([...statements])),
    status: () => asked(() => stub.status()),
  };
}

async function asked<T>(ask: () => Promise<T>): Promise<T> {
  try {
    return await ask();
  } catch (error) {
    throw writerError(error);
  }
}

/** What the writer may throw; anything else is the object itself having gone (restarted, overloaded), which may pass. */
const CODES: ReadonlySet<string> = new Set<ErrorCode>(["ERR_CONFLICT", "ERR_DISK", "ERR_OVERLOADED", "ERR_STORE"]);

/** What a call to the Durable Object was rejected with, as a FulgurError again where it may be the writer's. */
export function writerError(error: unknown): unknown {
  if (!(error instanceof Error) || error instanceof FulgurError) return error;
  if ("code" in error && isWriterCode(error.code)) return new FulgurError(error.code, error.message, { cause: error });
  // The runtime resets an object whose storage cannot be written, and tells all its callers this.
  if (/SQLITE_(FULL|IOERR)/.test(error.message)) {
    return new FulgurError("ERR_DISK", `the writer's own disk is full or failing (${error.message}); free some space`, {
      cause: error,
    });
  }
  return new FulgurError("ERR_STORE", `the writer did not answer (${error.message}); try again in a second`, {
    cause: error,
  });
}

function isWriterCode(code: unknown): code is ErrorCode {
  return typeof code === "string" && CODES.has(code);
}
