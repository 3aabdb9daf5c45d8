import { FulgurError } from "#shared/errors.ts";
import { inTime } from "../../proxy/body.ts";

/** Of an OTLP request as sent, and after decompression; a gzip bomb ends at the second. */
const MAX_SENT_BYTES = 4 * 1_048_576;
const MAX_BODY_BYTES = 16 * 1_048_576;

/**
 * The body of an OTLP request, decompressed.
 * @throws FulgurError ERR_TOO_LARGE before more than the limits are in memory; ERR_INVALID_REQUEST where it is not gzip or does not come
 */
export async function readOtlpBody(request: Request): Promise<Uint8Array> {
  const { body, headers } = request;
  if (body === null) return new Uint8Array();
  const encoding = (headers.get("content-encoding") ?? "identity").trim().toLowerCase();
  if (encoding === "identity" || encoding === "") return inTime(gather(body, MAX_SENT_BYTES));
  if (encoding !== "gzip") {
    throw new FulgurError("ERR_INVALID_REQUEST", `a body may be plain or gzip, this one says ${encoding.slice(0, 40)}`);
  }
  const sent = await inTime(gather(body, MAX_SENT_BYTES));
  try {
    return await gather(new Blob([sent]).stream().pipeThrough(new DecompressionStream("gzip")), MAX_BODY_BYTES);
  } catch (cause) {
    if (cause instanceof FulgurError) throw cause;
    throw new FulgurError("ERR_INVALID_REQUEST", "the body says that it is gzip, and is not", { cause });
  }
}

async function gather(stream: ReadableStream<Uint8Array>, maxBytes: number): Promise<Uint8Array<ArrayBuffer>> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of stream) {
    bytes += piece.byteLength;
    if (bytes > maxBytes) {
      throw new FulgurError(
        "ERR_TOO_LARGE",
        `an OTLP body may have ${maxBytes} bytes, this one has more; export smaller batches`,
      );
    }
    pieces.push(piece);
  }
  const whole = new Uint8Array(bytes);
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.byteLength;
  }
  return whole;
}
