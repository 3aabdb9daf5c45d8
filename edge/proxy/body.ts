import { FulgurError } from "#shared/errors.ts";

/** Of a request's body; the largest context is far below it. */
export const MAX_BODY_BYTES = 1_048_576;

/**
 * A request's body as text.
 * @throws FulgurError ERR_TOO_LARGE before more than the limit is in memory
 */
export async function readText(request: Request, maxBytes = MAX_BODY_BYTES): Promise<string> {
  const declared = request.headers.get("content-length");
  // HTTP itself holds a body to its declared length.
  if (declared !== null && Number(declared) <= maxBytes) return request.text();
  if (declared !== null) throw tooLarge(maxBytes);
  if (request.body === null) return "";
  const decoder = new TextDecoder();
  let text = "";
  let bytes = 0;
  for await (const chunk of request.body) {
    bytes += chunk.byteLength;
    if (bytes > maxBytes) throw tooLarge(maxBytes);
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
}

function tooLarge(maxBytes: number): FulgurError {
  return new FulgurError("ERR_TOO_LARGE", `a body may have ${maxBytes} bytes, this one has more; send less at a time`);
}
