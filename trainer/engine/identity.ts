/** What a checkpoint belongs to: tensors of another model, method or optimizer would fit by chance or not at all. */

import type { EngineInfo } from "./contract.ts";
import { loraTargets } from "./lora.ts";
import type { Method, OptimizerConfig } from "./options.ts";

/**
 * The same for every engine, so that a run may go on with another one.
 * @param baseSha256 of the frozen weights under LoRA, as float32 in file order: an adapter means nothing on others,
 * whatever their shapes; unused with full weights
 */
export function identityOf(
  { architecture, valueHead }: Pick<EngineInfo, "architecture" | "valueHead">,
  { method, optimizer }: { readonly method: Method; readonly optimizer: Pick<OptimizerConfig, "type"> },
  baseSha256: string,
): string {
  const { family, layers, width, vocab } = architecture;
  const model = `${family} ${layers}x${width} vocab ${vocab}`;
  const trainer = valueHead ? `${optimizer.type}, value head` : optimizer.type;
  if (method.type === "full") return `${model}, full weights, ${trainer}`;
  const base = baseSha256.slice(0, 16);
  return `${model}, base ${base}, lora rank ${method.rank} alpha ${method.alpha} on ${loraTargets(method).join("+")}, ${trainer}`;
}
