/**
 * A small builder of ONNX graphs. Values are their names (strings); nodes are added in the order in
 * which they run. It checks that names are unique and defined; what operators mean is the runtime's
 * business.
 *
 * ```ts
 * const graph = new GraphBuilder("double");
 * const x = graph.input("x", "float32", ["rows", 4]);
 * graph.output(graph.node("Mul", [x, graph.scalar(2)]), "float32", ["rows", 4], "y");
 * const session = await InferenceSession.create(graph.toBytes());
 * ```
 */

import { FulgurError } from "#shared/errors.ts";
import {
  type Attribute,
  type Dimension,
  type ElementType,
  encodeModel,
  type InitializerSpec,
  type NodeSpec,
  type ValueSpec,
} from "./model-proto.ts";

/** Attributes by name; build them with `int`, `float`, `ints`, `floats` and `text`. */
export type Attributes = Readonly<Record<string, Attribute>>;

/** A whole-number attribute. */
export const int = (value: number): Attribute => ({ kind: "int", value });
/** A real-number attribute. */
export const float = (value: number): Attribute => ({ kind: "float", value });
/** A list of whole numbers. */
export const ints = (value: readonly number[]): Attribute => ({ kind: "ints", value });
/** A list of real numbers. */
export const floats = (value: readonly number[]): Attribute => ({ kind: "floats", value });
/** A string attribute. */
export const text = (value: string): Attribute => ({ kind: "string", value });

/** The operator sets that graphs are written in. */
export interface GraphOptions {
  /** ONNX operator set. */
  readonly opset?: number;
}

/** Builds one graph and encodes it as a model. */
export class GraphBuilder {
  readonly #name: string;
  readonly #opset: number;
  readonly #nodes: NodeSpec[] = [];
  readonly #initializers: InitializerSpec[] = [];
  readonly #inputs: ValueSpec[] = [];
  readonly #outputs: ValueSpec[] = [];
  readonly #defined = new Set<string>();
  readonly #constants = new Map<string, string>();
  #serial = 0;

  constructor(name: string, options: GraphOptions = {}) {
    this.#name = name;
    this.#opset = options.opset ?? 21;
  }

  /** Declares a graph input; sizes that vary are given by name. */
  input(name: string, type: ElementType, shape: readonly Dimension[]): string {
    this.#inputs.push({ name, type, shape });
    return this.#define(name);
  }

  /** A named constant. `data` is referenced until `toBytes`. @throws FulgurError ERR_SHAPE when lengths differ */
  initializer(name: string, type: ElementType, shape: readonly number[], data: ArrayBufferView): string {
    const count = shape.reduce((product, size) => product * size, 1);
    const bytes = count * ELEMENT_BYTES[type];
    if (data.byteLength !== bytes) {
      throw new FulgurError(
        "ERR_SHAPE",
        `Constant "${name}" [${shape.join(", ")}] ${type} needs ${bytes} bytes, got ${data.byteLength}.`,
      );
    }
    this.#initializers.push({ name, type, shape, data });
    return this.#define(name);
  }

  /** A float32 scalar constant; equal ones are shared. */
  scalar(value: number): string {
    return this.#constant(`scalar_${value}`, "float32", [], new Float32Array([value]));
  }

  /** A float32 constant [size] of one number; equal ones are shared. */
  vector(value: number, size: number): string {
    return this.#constant(`vector_${value}_${size}`, "float32", [size], new Float32Array(size).fill(value));
  }

  /** A one-dimensional int64 constant, as shapes, axes and indices are given; equal ones are shared. */
  int64s(values: readonly number[]): string {
    return this.#constant(
      `int64s_${values.join("_")}`,
      "int64",
      [values.length],
      BigInt64Array.from(values, (value) => BigInt(value)),
    );
  }

  /**
   * Adds a node with one output and returns that output's name.
   * @param operator an ONNX operator, or one of another domain as `com.microsoft.FusedMatMul`
   * @param inputs names; "" leaves an optional input out
   */
  node(operator: string, inputs: readonly string[], attributes: Attributes = {}): string {
    const [output = ""] = this.nodes(operator, inputs, 1, attributes);
    return output;
  }

  /** As `node`, with `outputCount` outputs. */
  nodes(operator: string, inputs: readonly string[], outputCount: number, attributes: Attributes = {}): string[] {
    const dot = operator.lastIndexOf(".");
    const bare = operator.slice(dot + 1);
    for (const input of inputs) {
      if (input !== "" && !this.#defined.has(input)) {
        throw new FulgurError(
          "ERR_INTERNAL",
          `Graph "${this.#name}": ${bare} reads "${input}", which is not defined yet.`,
        );
      }
    }
    const name = `${bare}_${this.#serial++}`;
    const outputs = Array.from({ length: outputCount }, (_, i) => this.#define(i === 0 ? name : `${name}_${i}`));
    this.#nodes.push({
      name,
      domain: operator.slice(0, Math.max(dot, 0)),
      operator: bare,
      inputs,
      outputs,
      attributes,
    });
    return outputs;
  }

  /**
   * Makes a value a graph output.
   * @param as the output's name; the value's own when absent
   */
  output(value: string, type: ElementType, shape: readonly Dimension[], as: string = value): string {
    if (as !== value) {
      this.#nodes.push({
        name: `output_${as}`,
        domain: "",
        operator: "Identity",
        inputs: [value],
        outputs: [this.#define(as)],
        attributes: {},
      });
    }
    this.#outputs.push({ name: as, type, shape });
    return as;
  }

  /** Names of the graph inputs, in order. */
  get inputNames(): string[] {
    return this.#inputs.map(({ name }) => name);
  }

  /** Names of the graph outputs, in order. */
  get outputNames(): string[] {
    return this.#outputs.map(({ name }) => name);
  }

  /** The graph as the bytes of an ONNX file. @throws FulgurError ERR_TOO_LARGE beyond 2 GiB of constants */
  toBytes(): Uint8Array {
    const operatorSets: Record<string, number> = { "": this.#opset };
    for (const { domain } of this.#nodes) if (domain !== "") operatorSets[domain] = 1;
    return encodeModel({
      name: this.#name,
      operatorSets,
      nodes: this.#nodes,
      initializers: this.#initializers,
      inputs: this.#inputs,
      outputs: this.#outputs,
    });
  }

  #constant(key: string, type: ElementType, shape: readonly number[], data: ArrayBufferView): string {
    const known = this.#constants.get(key);
    if (known !== undefined) return known;
    const name = this.initializer(key, type, shape, data);
    this.#constants.set(key, name);
    return name;
  }

  #define(name: string): string {
    if (name === "" || this.#defined.has(name)) {
      throw new FulgurError("ERR_INTERNAL", `Graph "${this.#name}" already defines "${name}".`);
    }
    this.#defined.add(name);
    return name;
  }
}

const ELEMENT_BYTES: Readonly<Record<ElementType, number>> = {
  float32: 4,
  uint8: 1,
  int8: 1,
  int32: 4,
  int64: 8,
  bool: 1,
};
