import { z } from "zod";
import { cannotJudge, type EvaluateSlowly, type EvaluatorDeps, type EvaluatorOf } from "./contract.ts";
import { askEvaluator } from "./remote.ts";

const answerSchema = z.looseObject({
  score: z.number().min(0).max(1),
  format: z.number().min(0).max(1).default(1),
});

/**
 * Anybody's evaluator, behind a service binding or at a URL: POST `{ input, result, expected, calls }` →
 * `{ score, format? }`, both in [0, 1]; `calls` are the assistant's messages, oldest first.
 */
export const workerEvaluator: EvaluateSlowly<"worker"> = async (evaluator, given, deps) => {
  const { input, result, expected, calls, signal } = given;
  const { send, url } = wayTo(evaluator, deps);
  const body = { input, result, expected, calls };
  const { score, format } = await askEvaluator(send, url, { body, answer: answerSchema, signal });
  return { correctness: score, format };
};

/**
 * Refuses an evaluator that leads nowhere.
 * @throws FulgurError ERR_INVALID_REQUEST unless it has one of binding and url, and the url is HTTPS (HTTP on loopback)
 */
export function checkWorkerEvaluator({ binding, url }: EvaluatorOf<"worker">): void {
  if ((binding === undefined) === (url === undefined)) throw cannotJudge("a worker evaluator wants a binding or a url");
  if (binding !== undefined && !isEvaluatorBinding(binding)) {
    throw cannotJudge(`a worker evaluator's binding is called EVAL_…, not ${binding}`);
  }
  if (url === undefined) return;
  const { protocol, hostname } = new URL(url);
  const isLoopback = ["127.0.0.1", "[::1]", "localhost"].includes(hostname);
  if (protocol !== "https:" && !(protocol === "http:" && isLoopback)) {
    throw cannotJudge("a worker evaluator's url wants https (http on loopback)");
  }
}

/** Only bindings that are named for it: an evaluator must not lead to the edge's own store. */
export function isEvaluatorBinding(name: string): boolean {
  return name === "EVAL" || name.startsWith("EVAL_");
}

function wayTo(evaluator: EvaluatorOf<"worker">, deps: EvaluatorDeps): { send: typeof fetch; url: string } {
  checkWorkerEvaluator(evaluator);
  const { binding, url } = evaluator;
  const send = binding === undefined ? deps.fetch : deps.service?.(binding);
  if (send === undefined) throw cannotJudge(`the edge has no way to ${binding ?? "the network"} from here`);
  return { send, url: url ?? "https://evaluator/" };
}
