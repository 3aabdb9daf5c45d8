/** Which tokens may come next in an answer whose form is given: a grammar over bytes, looked at through a vocabulary. */

import type { Tokenizer } from "../model/tokenizer.ts";
import type { Grammar, MatchState } from "./grammar.ts";

/** The tokens that text is written in, ordered by their bytes. Shared between threads and not copied. */
export interface Vocabulary {
  readonly size: number;
  /** Ids in the order of their bytes; special tokens and empty ones are left out. */
  readonly ids: Int32Array;
  /** The k-th token's bytes are bytes[starts[k]] … bytes[starts[k + 1] − 1]. */
  readonly starts: Int32Array;
  readonly bytes: Uint8Array;
  /** How many bytes the k-th token has in common with the one before it. */
  readonly shared: Int32Array;
}

/** The vocabulary of a tokenizer. */
export function vocabularyOf(tokenizer: Tokenizer): Vocabulary {
  const { vocab, specialIds } = tokenizer;
  const tokens = Array.from({ length: vocab }, (_, id) => ({ id, bytes: tokenizer.bytesOf(id) }))
    .filter(({ id, bytes }) => bytes.length > 0 && !specialIds.has(id))
    .toSorted((a, b) => Buffer.compare(a.bytes, b.bytes));
  const total = tokens.reduce((sum, { bytes }) => sum + bytes.length, 0);
  const ids = new Int32Array(new SharedArrayBuffer(4 * tokens.length));
  const starts = new Int32Array(new SharedArrayBuffer(4 * (tokens.length + 1)));
  const shared = new Int32Array(new SharedArrayBuffer(4 * tokens.length));
  const joined = new Uint8Array(new SharedArrayBuffer(total));
  let at = 0;
  for (const [k, { id, bytes }] of tokens.entries()) {
    const before = tokens[k - 1]?.bytes ?? new Uint8Array(0);
    let common = 0;
    while (common < before.length && before[common] === bytes[common]) common++;
    ids[k] = id;
    shared[k] = common;
    starts[k] = at;
    joined.set(bytes, at);
    at += bytes.length;
  }
  starts[tokens.length] = at;
  return { size: vocab, ids, starts, bytes: joined, shared };
}

/** Sets of tokens are remembered for this many states of a grammar. */
const MAX_SETS = 256;

/** A grammar over tokens; several answers may share one. */
export class TokenGrammar {
  readonly #grammar: Grammar;
  readonly #vocabulary: Vocabulary;
  /** By state, the least recently used first. */
  readonly #sets = new Map<number, readonly number[]>();
  /** Where the bytes of each id are, by id; −1 for those that are no text. */
  readonly #places: Int32Array;

  constructor(grammar: Grammar, vocabulary: Vocabulary) {
    this.#grammar = grammar;
    this.#vocabulary = vocabulary;
    this.#places = new Int32Array(vocabulary.size).fill(-1);
    for (const [k, id] of vocabulary.ids.entries()) this.#places[id] = k;
  }

  /** Begins an answer. @param stopIds allowed wherever the text may end */
  matcher(stopIds: readonly number[]): TokenMatcher {
    return new TokenMatcher(this, this.#grammar.start(), stopIds);
  }

  /** Ids that may follow, in no order. */
  following(state: MatchState): readonly number[] {
    const known = this.#sets.get(state.id);
    if (known !== undefined) this.#sets.delete(state.id);
    const allowed = known ?? this.#walk(state);
    this.#sets.set(state.id, allowed);
    if (this.#sets.size > MAX_SETS) for (const oldest of this.#sets.keys().take(1)) this.#sets.delete(oldest);
    return allowed;
  }

  /** The state behind a token; null when it does not fit. */
  after(state: MatchState, id: number): MatchState | null {
    const { starts, bytes } = this.#vocabulary;
    const k = this.#places[id] ?? -1;
    if (k < 0) return null;
    let reached: MatchState | null = state;
    for (let at = starts[k] ?? 0; at < (starts[k + 1] ?? 0) && reached !== null; at++) {
      reached = reached.next(bytes[at] ?? 0);
    }
    return reached;
  }

  #walk(state: MatchState): number[] {
    const { ids, starts, bytes, shared } = this.#vocabulary;
    const allowed: number[] = [];
    // The states behind each byte of the token before, as far as it fitted.
    const path = [state];
    for (const [k, id] of ids.entries()) {
      const begin = starts[k] ?? 0;
      const length = (starts[k + 1] ?? 0) - begin;
      let matched = shared[k] ?? 0;
      // It begins with what did not fit.
      if (matched >= path.length) continue;
      path.length = matched + 1;
      for (; matched < length; matched++) {
        const next = path[matched]?.next(bytes[begin + matched] ?? 0) ?? null;
        if (next === null) break;
        path.push(next);
      }
      if (matched === length) allowed.push(id);
    }
    return allowed;
  }
}

/** One answer as it grows. */
export class TokenMatcher {
  readonly #grammar: TokenGrammar;
  readonly #stopIds: readonly number[];
  #state: MatchState | null;

  constructor(grammar: TokenGrammar, state: MatchState | null, stopIds: readonly number[]) {
    this.#grammar = grammar;
    this.#state = state;
    this.#stopIds = stopIds;
  }

  /** Ids that may come next; none when the text is complete and nothing can stop it, or nothing can go on with it. */
  allowed(): readonly number[] {
    if (this.#state === null) return [];
    const following = this.#grammar.following(this.#state);
    return this.#state.isAccepting ? [...following, ...this.#stopIds] : following;
  }

  /** Takes a token of those that are allowed. */
  accept(id: number): void {
    if (this.#state !== null && !this.#stopIds.includes(id)) this.#state = this.#grammar.after(this.#state, id);
  }
}
