/**
 * Encodes an ONNX ModelProto. It knows the wire format and the field numbers of `onnx.proto`
 * (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto) and nothing of what a graph means.
 */

import protobuf from "protobufjs/minimal.js";
import { FulgurError } from "#shared/errors.ts";

/** Element types that our graphs use. */
export type ElementType = "float32" | "uint8" | "int8" | "int32" | "int64" | "bool";

/** A size, or the name of a size that varies from run to run. */
export type Dimension = number | string;

/** The name, element type and shape of a graph input or output. */
export interface ValueSpec {
  readonly name: string;
  readonly type: ElementType;
  readonly shape: readonly Dimension[];
}

/** A constant tensor; `data` is referenced, not copied, until the model is encoded. */
export interface InitializerSpec {
  readonly name: string;
  readonly type: ElementType;
  readonly shape: readonly number[];
  readonly data: ArrayBufferView;
}

/** An attribute of a node: ONNX tells 1 from 1.0, so the kind is written out. */
export type Attribute =
  | { readonly kind: "int"; readonly value: number }
  | { readonly kind: "float"; readonly value: number }
  | { readonly kind: "string"; readonly value: string }
  | { readonly kind: "ints"; readonly value: readonly number[] }
  | { readonly kind: "floats"; readonly value: readonly number[] };

/** One operator call. An empty input name leaves an optional input out. */
export interface NodeSpec {
  readonly name: string;
  /** Empty for ONNX's own operators. */
  readonly domain: string;
  readonly operator: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly attributes: Readonly<Record<string, Attribute>>;
}

/** A whole model. */
export interface ModelSpec {
  readonly name: string;
  /** Domain → operator set version; "" is ONNX's own. */
  readonly operatorSets: Readonly<Record<string, number>>;
  readonly nodes: readonly NodeSpec[];
  readonly initializers: readonly InitializerSpec[];
  readonly inputs: readonly ValueSpec[];
  readonly outputs: readonly ValueSpec[];
}

const IR_VERSION = 10;
const ELEMENT_CODE: Readonly<Record<ElementType, number>> = {
  float32: 1,
  uint8: 2,
  int8: 3,
  int32: 6,
  int64: 7,
  bool: 9,
};
const ATTRIBUTE_CODE = { float: 1, int: 2, string: 3, floats: 6, ints: 7 } as const;
// A protobuf message holds at most 2³¹−1 bytes.
const MAX_MODEL_BYTES = 2 ** 31 - 1;

/**
 * Encodes a model. Initialisers are copied once, into the result.
 * @throws FulgurError ERR_TOO_LARGE when the initialisers exceed protobuf's 2 GiB
 */
export function encodeModel(model: ModelSpec): Uint8Array {
  const initializerBytes = model.initializers.reduce((sum, { data }) => sum + data.byteLength, 0);
  if (initializerBytes > MAX_MODEL_BYTES - 2 ** 24) {
    throw new FulgurError(
      "ERR_TOO_LARGE",
      `The graph "${model.name}" holds ${initializerBytes} bytes of constants, and an ONNX file at most 2 GiB; pass large weights as inputs.`,
    );
  }
  // Constants are copied once, into their place: a protobufjs writer would grow and shift over them several times.
  const initializers = model.initializers.map((initializer) => {
    const { data } = initializer;
    const head = bytesOf((writer) => writeInitializerHead(writer, initializer));
    return {
      head,
      data: new Uint8Array(data.buffer, data.byteOffset, data.byteLength),
      bytes: head.length + data.byteLength,
    };
  });
  const prefixes = initializers.map(({ bytes }) => bytesOf((writer) => writer.uint32(tag(5, BYTES)).uint32(bytes)));
  const graph = bytesOf((writer) => writeGraph(writer, model));
  const graphBytes = initializers.reduce((sum, { bytes }, i) => sum + (prefixes[i]?.length ?? 0) + bytes, graph.length);
  const head = bytesOf((writer) => {
    writer.uint32(tag(1, VARINT)).int64(IR_VERSION);
    writer.uint32(tag(2, BYTES)).string("fulgur");
    for (const [domain, version] of Object.entries(model.operatorSets)) {
      message(writer, 8, () => {
        writer.uint32(tag(1, BYTES)).string(domain);
        writer.uint32(tag(2, VARINT)).int64(version);
      });
    }
    writer.uint32(tag(7, BYTES)).uint32(graphBytes);
  });
  const encoded = new Uint8Array(head.length + graphBytes);
  let at = 0;
  const put = (part: Uint8Array | undefined): void => {
    if (part === undefined) return;
    encoded.set(part, at);
    at += part.length;
  };
  put(head);
  put(graph);
  for (const [i, initializer] of initializers.entries()) {
    put(prefixes[i]);
    put(initializer.head);
    put(initializer.data);
  }
  return encoded;
}

function bytesOf(write: (writer: Writer) => void): Uint8Array {
  const writer = protobuf.Writer.create();
  write(writer);
  return writer.finish();
}

type Writer = protobuf.Writer;
const VARINT = 0;
const BYTES = 2;
const FIXED32 = 5;

function tag(field: number, wireType: number): number {
  return (field << 3) | wireType;
}

function message(writer: Writer, field: number, write: () => void): void {
  writer.uint32(tag(field, BYTES)).fork();
  write();
  writer.ldelim();
}

function writeGraph(writer: Writer, model: ModelSpec): void {
  for (const node of model.nodes) message(writer, 1, () => writeNode(writer, node));
  writer.uint32(tag(2, BYTES)).string(model.name);
  for (const input of model.inputs) message(writer, 11, () => writeValue(writer, input));
  for (const output of model.outputs) message(writer, 12, () => writeValue(writer, output));
}

function writeNode(writer: Writer, node: NodeSpec): void {
  for (const input of node.inputs) writer.uint32(tag(1, BYTES)).string(input);
  for (const output of node.outputs) writer.uint32(tag(2, BYTES)).string(output);
  writer.uint32(tag(3, BYTES)).string(node.name);
  writer.uint32(tag(4, BYTES)).string(node.operator);
  for (const [name, attribute] of Object.entries(node.attributes)) {
    message(writer, 5, () => writeAttribute(writer, name, attribute));
  }
  if (node.domain !== "") writer.uint32(tag(7, BYTES)).string(node.domain);
}

function writeAttribute(writer: Writer, name: string, attribute: Attribute): void {
  writer.uint32(tag(1, BYTES)).string(name);
  if (attribute.kind === "float") writer.uint32(tag(2, FIXED32)).float(attribute.value);
  else if (attribute.kind === "int") writer.uint32(tag(3, VARINT)).int64(attribute.value);
  else if (attribute.kind === "string") writer.uint32(tag(4, BYTES)).string(attribute.value);
  else if (attribute.kind === "floats") {
    for (const value of attribute.value) writer.uint32(tag(7, FIXED32)).float(value);
  } else {
    for (const value of attribute.value) writer.uint32(tag(8, VARINT)).int64(value);
  }
  writer.uint32(tag(20, VARINT)).int32(ATTRIBUTE_CODE[attribute.kind]);
}

/** All of a tensor but its data, up to the data's length. */
function writeInitializerHead(writer: Writer, { name, type, shape, data }: InitializerSpec): void {
  for (const size of shape) writer.uint32(tag(1, VARINT)).int64(size);
  writer.uint32(tag(2, VARINT)).int32(ELEMENT_CODE[type]);
  writer.uint32(tag(8, BYTES)).string(name);
  writer.uint32(tag(9, BYTES)).uint32(data.byteLength);
}

function writeValue(writer: Writer, { name, type, shape }: ValueSpec): void {
  writer.uint32(tag(1, BYTES)).string(name);
  message(writer, 2, () => {
    message(writer, 1, () => {
      writer.uint32(tag(1, VARINT)).int32(ELEMENT_CODE[type]);
      message(writer, 2, () => {
        for (const size of shape) {
          message(writer, 1, () => {
            if (typeof size === "number") writer.uint32(tag(1, VARINT)).int64(size);
            else writer.uint32(tag(2, BYTES)).string(size);
          });
        }
      });
    });
  });
}
