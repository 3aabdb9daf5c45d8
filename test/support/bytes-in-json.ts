/** Replacer and reviver that carry byte arrays through JSON, between a test in Node and its Worker. */

export function withoutBytes(_key: string, value: unknown): unknown {
  return value instanceof Uint8Array ? { $bytes: [...value] } : value;
}

export function withBytes(_key: string, value: unknown): unknown {
  const isBytes = typeof value === "object" && value !== null && "$bytes" in value && Array.isArray(value.$bytes);
  return isBytes ? Uint8Array.from(value.$bytes as number[]) : value;
}
