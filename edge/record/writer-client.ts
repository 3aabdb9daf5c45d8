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
    throw restored(error);
  }
}

/** What the writer may throw; anything else is the object itself having gone (restarted, overloaded), which may pass. */
const CODES: ReadonlySet<string> = new Set<ErrorCode>(["ERR_CONFLICT", "ERR_DISK", "ERR_OVERLOADED", "ERR_STORE"]);

function restored(error: unknown): unknown {
  if (!(error instanceof Error)) return error;
  const code = "code" in error && isWriterCode(error.code) ? error.code : undefined;
  return code === undefined
    ? new FulgurError("ERR_STORE", `the writer did not answer (${error.message}); try again in a second`, {
        cause: error,
      })
    : new FulgurError(code, error.message, { cause: error });
}

function isWriterCode(code: unknown): code is ErrorCode {
  return typeof code === "string" && CODES.has(code);
}
