import { FulgurError } from "#shared/errors.ts";
import { limits as limitsOfItsOwn, type Limits } from "./limits.ts";

/** Of a request's body; the largest context is far below it. */
export const MAX_BODY_BYTES = 1_048_576;

/** How long a body may take to come: workerd has no limit of its own, and a client that stops would be waited for for ever. */
const MAX_BODY_MS = 20_000;

/**
 * A request's body as text.
 * @throws FulgurError ERR_TOO_LARGE before more than the limit is in memory; ERR_INVALID_REQUEST where it does not come
 */
export async function readText(
  request: Request,
  { maxBytes = MAX_BODY_BYTES, limits }: { readonly maxBytes?: number; readonly limits?: Limits } = {},
): Promise<string> {
  const declared = request.headers.get("content-length");
  // HTTP itself holds a body to its declared length.
  if (declared !== null && Number(declared) <= maxBytes) return inTime(request.text(), limits);
  if (declared !== null) throw tooLarge(maxBytes);
  return request.body === null ? "" : inTime(gathered(request.body, maxBytes), limits);
}

/**
 * A body that is being read, if it comes within {@link MAX_BODY_MS}.
 * @throws FulgurError ERR_INVALID_REQUEST where it does not, or its client has left; what `reading` throws as a FulgurError
 */
export async function inTime<T>(reading: Promise<T>, limits: Limits = limitsOfItsOwn()): Promise<T> {
  const late = Promise.withResolvers<never>();
  const callOff = limits.after(MAX_BODY_MS, () => {
    late.reject(
      new FulgurError("ERR_INVALID_REQUEST", `the body did not come within ${MAX_BODY_MS} ms; send it whole`),
    );
  });
  try {
    return await Promise.race([reading, late.promise]);
  } catch (cause) {
    if (cause instanceof FulgurError) throw cause;
    throw new FulgurError("ERR_INVALID_REQUEST", "the body broke off before its end; send it again", { cause });
  } finally {
    callOff();
  }
}

async function gathered(body: ReadableStream<Uint8Array>, maxBytes: number): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  let bytes = 0;
  for await (const chunk of body) {
    bytes += chunk.byteLength;
    if (bytes > maxBytes) throw tooLarge(maxBytes);
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
}

function tooLarge(maxBytes: number): FulgurError {
  return new FulgurError("ERR_TOO_LARGE", `a body may have ${maxBytes} bytes, this one has more; send less at a time`);
}
