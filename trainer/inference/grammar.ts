/**
 * Context-free grammars over bytes, matched one byte at a time. A grammar is a tree of nodes with references back into
 * itself; matching keeps every stack of nodes that the text so far leaves open, as a pushdown automaton does. States are
 * interned and their transitions remembered, so that what is common in a text (a character of a string) is looked up.
 * It knows nothing of JSON or tokens.
 */

/** A part of a grammar. Left recursion matches nothing. */
export type GrammarNode =
  /** One byte of a set. */
  | { readonly type: "byte"; readonly accepts: ReadonlySet<number> }
  | { readonly type: "sequence"; readonly items: readonly GrammarNode[] }
  | { readonly type: "choice"; readonly options: readonly GrammarNode[] }
  /** Any number of times, none included. */
  | { readonly type: "repeat"; readonly item: GrammarNode }
  /** Another node, asked for when it is reached: what makes a grammar recursive. */
  | { readonly type: "reference"; readonly target: () => GrammarNode };

/** Exactly this text. */
export function literal(text: string): GrammarNode {
  return { type: "sequence", items: Array.from(Buffer.from(text, "utf8"), (byte) => singleBytes[byte] ?? sequence()) };
}

/** One byte of these ranges, both ends included. */
export function bytes(...ranges: readonly (readonly [from: number, to: number])[]): GrammarNode {
  const accepts = new Set<number>();
  for (const [from, to] of ranges) for (let byte = from; byte <= to; byte++) accepts.add(byte);
  return { type: "byte", accepts };
}

/** One after the other. */
export function sequence(...items: readonly GrammarNode[]): GrammarNode {
  return { type: "sequence", items };
}

/** One of them. */
export function choice(...options: readonly GrammarNode[]): GrammarNode {
  return { type: "choice", options };
}

/** Once or not at all. */
export function optional(item: GrammarNode): GrammarNode {
  return choice(sequence(), item);
}

/** Any number of times. */
export function repeat(item: GrammarNode): GrammarNode {
  return { type: "repeat", item };
}

/** At least `least` and at most `most` times. */
export function between(item: GrammarNode, least: number, most: number): GrammarNode {
  const required = Array.from({ length: least }, () => item);
  if (most === Infinity) return sequence(...required, repeat(item));
  let rest = sequence();
  for (let i = least; i < most; i++) rest = optional(sequence(item, rest));
  return sequence(...required, rest);
}

/** Shared, so that long lists of literals are light. */
const singleBytes = Array.from({ length: 256 }, (_, byte) => bytes([byte, byte]));

/** What may follow a text that was matched so far. */
export interface MatchState {
  readonly id: number;
  /** The text may end here. */
  readonly isAccepting: boolean;
  /** The state after one more byte; null when the grammar has no such text. */
  next(byte: number): MatchState | null;
}

/** What is still to be matched, top first; null when nothing is. */
interface Stack {
  readonly id: number;
  readonly node: GrammarNode;
  readonly rest: Stack | null;
}

/** Remembered states beyond this many are forgotten, or endless texts would fill the memory. */
const MAX_STATES = 20_000;

/** A grammar made ready for matching. */
export class Grammar {
  readonly #root: GrammarNode;
  readonly #nodeIds = new Map<GrammarNode, number>();
  #stacks = new Map<string, Stack>();
  #states = new Map<string, MatchState>();
  #nextId = 1;

  constructor(root: GrammarNode) {
    this.#root = root;
  }

  /** The state of the empty text; null when the grammar has no text at all to begin. */
  start(): MatchState | null {
    return this.#stateOf([this.#push(this.#root, null)]);
  }

  /** The state of these stacks, each opened until a byte is on top. */
  #stateOf(stacks: readonly (Stack | null)[]): MatchState | null {
    const open = new Map<number, Stack>();
    const seen = new Set<number>();
    let isAccepting = false;
    const pending = [...stacks];
    while (pending.length > 0) {
      const stack = pending.pop() ?? null;
      if (stack === null) {
        isAccepting = true;
        continue;
      }
      if (seen.has(stack.id)) continue;
      seen.add(stack.id);
      if (stack.node.type === "byte") open.set(stack.id, stack);
      else pending.push(...this.#opened(stack.node, stack));
    }
    if (open.size === 0 && !isAccepting) return null;
    const key = `${isAccepting} ${[...open.keys()].toSorted((a, b) => a - b).join()}`;
    const known = this.#states.get(key);
    if (known !== undefined) return known;
    if (this.#states.size >= MAX_STATES) {
      this.#states = new Map();
      this.#stacks = new Map();
    }
    const state = this.#makeState([...open.values()], isAccepting);
    this.#states.set(key, state);
    return state;
  }

  #makeState(open: readonly Stack[], isAccepting: boolean): MatchState {
    const followers = new Map<number, MatchState | null>();
    return {
      id: this.#nextId++,
      isAccepting,
      next: (byte) => {
        const known = followers.get(byte);
        if (known !== undefined) return known;
        const left = open.filter(({ node }) => node.type === "byte" && node.accepts.has(byte)).map(({ rest }) => rest);
        const follower = left.length === 0 ? null : this.#stateOf(left);
        followers.set(byte, follower);
        return follower;
      },
    };
  }

  /** The stacks that one with this node on top stands for. */
  #opened(node: Exclude<GrammarNode, { type: "byte" }>, stack: Stack): (Stack | null)[] {
    switch (node.type) {
      case "sequence":
        return [node.items.reduceRight<Stack | null>((rest, item) => this.#push(item, rest), stack.rest)];
      case "choice":
        return node.options.map((option) => this.#push(option, stack.rest));
      case "repeat":
        return [stack.rest, this.#push(node.item, stack)];
      case "reference":
        return [this.#push(node.target(), stack.rest)];
    }
  }

  #push(node: GrammarNode, rest: Stack | null): Stack {
    let nodeId = this.#nodeIds.get(node);
    if (nodeId === undefined) {
      nodeId = this.#nodeIds.size;
      this.#nodeIds.set(node, nodeId);
    }
    const key = `${nodeId} ${rest?.id ?? 0}`;
    let stack = this.#stacks.get(key);
    if (stack === undefined) {
      stack = { id: this.#nextId++, node, rest };
      this.#stacks.set(key, stack);
    }
    return stack;
  }
}
