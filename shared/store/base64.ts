/** Base64 of bytes, by the platform where it can (workerd, newer Nodes): by hand it was most of a commit's cost. */
export function toBase64(bytes: Uint8Array): string {
  if ("toBase64" in bytes && typeof bytes.toBase64 === "function") return String(bytes.toBase64());
  let binary = "";
  // In slices, because an argument list has a limit.
  for (let at = 0; at < bytes.length; at += SLICE) {
    binary += String.fromCharCode.apply(null, bytes.subarray(at, at + SLICE) as unknown as number[]);
  }
  return btoa(binary);
}

/** The inverse of {@link toBase64}; padding may be missing. */
export function fromBase64(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

const SLICE = 0x2000;
