import { edgeConfig, serviceOf, type Env } from "../../config.ts";
import { outboundUrl } from "../../outbound-url.ts";
import { modelAsker, type AskParts } from "./ask-model.ts";
import type { EvaluatorDeps } from "./contract.ts";
import { isEvaluatorBinding } from "./worker.ts";

/**
 * Evaluators' ways out of an edge: models by way of its own proxy, service bindings named `EVAL…`, and URLs that the edge
 * may call.
 */
export function evaluatorDeps(env: Env, parts: AskParts): EvaluatorDeps {
  return {
    askModel: modelAsker(env, parts),
    service(binding) {
      if (!isEvaluatorBinding(binding) || Reflect.get(env, binding) === undefined) return undefined;
      const service = serviceOf(env, binding);
      return (input, init) => service.fetch(input, init);
    },
    fetch(input, init) {
      const url = input instanceof Request ? input.url : String(input);
      // Looked at again: settings that were stored while the edge was local may outlive that.
      outboundUrl(url, { what: "an evaluator's url", ...edgeConfig(env).outbound, query: true });
      return fetch(input, init);
    },
  };
}
