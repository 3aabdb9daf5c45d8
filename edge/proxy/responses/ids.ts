/**
 * Ids of a response and its items. All are made from the id of the call, so that whatever a client sends back
 * (`previous_response_id`, an `item_reference`, an item with its id) leads to the record without a table of its own.
 */

/** `rs` reasoning, `msg` message, `fc` function call: OpenAI's prefixes. */
export type ItemKind = "rs" | "msg" | "fc";

/** `resp_…` of a call `ca_…`. */
export function responseId(callId: string): string {
  return `resp_${keyOf(callId)}`;
}

/** The n-th item of a kind in a call's answer, from 0. */
export function itemId(callId: string, kind: ItemKind, n: number): string {
  return n === 0 ? `${kind}_${keyOf(callId)}` : `${kind}_${keyOf(callId)}_${n}`;
}

export interface KnownItem {
  readonly kind: ItemKind;
  /** The response that the item was part of. */
  readonly responseId: string;
  readonly n: number;
}

/** Reads an id that {@link itemId} made; undefined for any other, such as a provider's. */
export function readItemId(id: unknown): KnownItem | undefined {
  const found = typeof id === "string" ? OURS.exec(id) : null;
  if (found === null) return undefined;
  const [, kind, key = "", n = "0"] = found;
  return { kind: kind === "rs" || kind === "msg" ? kind : "fc", responseId: `resp_${key}`, n: Number(n) };
}

/** A key is a UUID without dashes; the ids of OpenAI's own items are longer. */
const OURS = /^(rs|msg|fc)_([0-9a-f]{32})(?:_(\d{1,4}))?$/;

function keyOf(callId: string): string {
  return callId.slice(callId.indexOf("_") + 1);
}
