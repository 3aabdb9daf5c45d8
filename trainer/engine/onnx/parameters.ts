/** Trained weights as slices of flat shared buffers, so that every replica reads and updates the same memory. */

import { FulgurError } from "#shared/errors.ts";
import type { Tensor } from "../../model/safetensors.ts";

/** Where one parameter lies in the flat buffers. */
export interface ParameterSlot {
  readonly name: string;
  readonly shape: readonly number[];
  readonly offset: number;
  readonly length: number;
}

/** Weights, moments and one gradient for each replica, all of one layout. */
export interface ParameterStore {
  readonly slots: readonly ParameterSlot[];
  readonly weights: Float32Array;
  /** AdamW's running mean of gradients; Muon's momentum for the matrices that it moves. */
  readonly firstMoments: Float32Array;
  /** AdamW's running mean of squared gradients. */
  readonly secondMoments: Float32Array;
  readonly gradients: readonly Float32Array[];
}

// A cache line of floats: replicas that update neighbouring parameters then never write the same line.
const ALIGNMENT = 16;

/** Lays out parameters, fills in their weights and zeroes the rest. */
export function createParameterStore(tensors: ReadonlyMap<string, Tensor>, replicas: number): ParameterStore {
  const slots: ParameterSlot[] = [];
  let offset = 0;
  for (const [name, { shape, data }] of tensors) {
    slots.push({ name, shape, offset, length: data.length });
    offset += Math.ceil(data.length / ALIGNMENT) * ALIGNMENT;
  }
  const buffer = (): Float32Array => new Float32Array(new SharedArrayBuffer(offset * 4));
  const weights = buffer();
  for (const slot of slots) weights.set(tensors.get(slot.name)?.data ?? [], slot.offset);
  return {
    slots,
    weights,
    firstMoments: buffer(),
    secondMoments: buffer(),
    gradients: Array.from({ length: replicas }, buffer),
  };
}

/** The part of a flat buffer that belongs to one parameter; a view, not a copy. */
export function view(buffer: Float32Array, slot: ParameterSlot): Float32Array {
  return buffer.subarray(slot.offset, slot.offset + slot.length);
}

/** Parameters of one flat buffer by name; views, not copies. */
export function tensorsOf(store: ParameterStore, buffer: Float32Array): Map<string, Tensor> {
  return new Map(store.slots.map((slot) => [slot.name, { shape: slot.shape, data: view(buffer, slot) }]));
}

/** @throws FulgurError ERR_CHECKPOINT when a parameter has no tensor among these, or one of another shape */
export function checkFit(store: ParameterStore, tensors: ReadonlyMap<string, Tensor>): void {
  for (const slot of store.slots) {
    const shape = tensors.get(slot.name)?.shape;
    if (shape?.join() !== slot.shape.join()) {
      throw new FulgurError(
        "ERR_CHECKPOINT",
        `The checkpoint has ${shape ? `shape [${shape.join(", ")}]` : "nothing"} for "${slot.name}", but this model wants [${slot.shape.join(", ")}]; it belongs to another model or method.`,
      );
    }
  }
}

/** Copies tensors that fit into a flat buffer. */
export function fill(store: ParameterStore, buffer: Float32Array, tensors: ReadonlyMap<string, Tensor>): void {
  for (const slot of store.slots) view(buffer, slot).set(tensors.get(slot.name)?.data ?? []);
}

/** Deals parameters to replicas, largest first to the least loaded, so that all finish a step together. */
export function dealSlots(slots: readonly ParameterSlot[], replicas: number): ParameterSlot[][] {
  const hands = Array.from({ length: replicas }, () => ({ load: 0, slots: [] as ParameterSlot[] }));
  for (const slot of slots.toSorted((a, b) => b.length - a.length)) {
    const lightest = hands.reduce((least, hand) => (hand.load < least.load ? hand : least));
    lightest.load += slot.length;
    lightest.slots.push(slot);
  }
  return hands.map((hand) => hand.slots);
}
