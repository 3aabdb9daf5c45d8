import { FulgurError } from "#shared/errors.ts";

/**
 * A conversation's prompts begin with one another: of each only what is new is kept, with a pointer to the earlier call of
 * the attempt that holds the rest. Twenty turns over 8,000 tokens are then stored once, not twenty times.
 */

/** A shorter beginning is not worth a pointer: a call that stands alone can be read alone. */
const MIN_PREFIX_TOKENS = 64;

export interface Cut {
  readonly prefixCallId: string | null;
  readonly prefixTokens: number;
  /** The prompt's ids after the prefix. */
  readonly rest: Int32Array;
}

/** An earlier call of the same attempt: its prompt's ids, then its response's. */
export interface EarlierCall {
  readonly id: string;
  readonly tokens: Int32Array;
}

/** What of a prompt is not in an earlier call. */
export function cutPrompt(prompt: Int32Array, earlier: EarlierCall | undefined): Cut {
  const shared = earlier === undefined ? 0 : commonLength(prompt, earlier.tokens);
  if (earlier === undefined || shared < MIN_PREFIX_TOKENS) return { prefixCallId: null, prefixTokens: 0, rest: prompt };
  return { prefixCallId: earlier.id, prefixTokens: shared, rest: prompt.subarray(shared) };
}

function commonLength(one: Int32Array, other: Int32Array): number {
  const most = Math.min(one.length, other.length);
  let length = 0;
  while (length < most && one[length] === other[length]) length++;
  return length;
}

/** A call as it is stored, its ids packed or not; see packed.ts. */
export interface CutCall {
  readonly id: string;
  readonly prefixCallId: string | null;
  readonly prefixTokens: number;
  readonly promptTokenIds: Uint8Array | null;
  readonly responseTokenIds: Uint8Array | null;
}

/**
 * The whole prompts of an attempt's calls, packed as they were sampled with.
 * @param calls every call of the attempt (or of several), in any order
 * @throws FulgurError ERR_STORE where the call that a prompt begins with is missing or too short: never a guess
 */
export function wholePrompts(calls: readonly CutCall[]): Map<string, Uint8Array | null> {
  const byId = new Map(calls.map((call) => [call.id, call]));
  const whole = new Map<string, Uint8Array | null>();
  for (const call of calls) {
    // Walked and not recursed: a rollout may have thousands of turns.
    const chain: CutCall[] = [];
    for (let at: CutCall | undefined = call; at !== undefined && !whole.has(at.id); at = before(at, byId)) {
      chain.push(at);
      if (chain.length > calls.length) throw broken(call, "the calls point at each other in a circle");
    }
    for (const link of chain.toReversed()) whole.set(link.id, joined(link, byId, whole));
  }
  return whole;
}

function before(call: CutCall, byId: ReadonlyMap<string, CutCall>): CutCall | undefined {
  if (call.prefixCallId === null) return undefined;
  const earlier = byId.get(call.prefixCallId);
  if (earlier === undefined) throw broken(call, "which is not there");
  return earlier;
}

function joined(
  call: CutCall,
  byId: ReadonlyMap<string, CutCall>,
  whole: ReadonlyMap<string, Uint8Array | null>,
): Uint8Array | null {
  const { prefixCallId, prefixTokens, promptTokenIds: rest } = call;
  if (prefixCallId === null || rest === null) return rest;
  const prompt = whole.get(prefixCallId) ?? new Uint8Array();
  const response = byId.get(prefixCallId)?.responseTokenIds ?? new Uint8Array();
  const wanted = prefixTokens * Int32Array.BYTES_PER_ELEMENT;
  if (prompt.byteLength + response.byteLength < wanted) throw broken(call, "which has fewer tokens");
  const ids = new Uint8Array(wanted + rest.byteLength);
  ids.set(prompt.subarray(0, wanted));
  if (wanted > prompt.byteLength) ids.set(response.subarray(0, wanted - prompt.byteLength), prompt.byteLength);
  ids.set(rest, wanted);
  return ids;
}

function broken({ id, prefixCallId, prefixTokens }: CutCall, why: string): FulgurError {
  return new FulgurError(
    "ERR_STORE",
    `call ${id} begins with ${prefixTokens} tokens of call ${prefixCallId ?? "?"}, ${why}; its record cannot be read`,
  );
}
