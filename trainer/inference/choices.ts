/** Several answers to one prompt. */

import type { AnswerChunk } from "./answer.ts";
import type { AnswerRequest, AnswerSummary, InferenceService } from "./service.ts";
import { sharedLease } from "./versions.ts";

/**
 * Samples `count` answers at once, the i-th with seed + i, all on the version that the request holds.
 * @param onChunk gets the pieces of each answer in order, those of different answers mixed
 * @returns how each one ended
 * @throws FulgurError as `InferenceService.answer`; the other answers are ended then
 */
export async function answerChoices(
  service: InferenceService,
  request: AnswerRequest,
  count: number,
  onChunk: (choice: number, chunk: AnswerChunk) => void,
): Promise<AnswerSummary[]> {
  const failed = new AbortController();
  const signal = AbortSignal.any([request.signal, failed.signal]);
  const lease = sharedLease(request.lease, count);
  const answers = Array.from({ length: count }, async (_, choice) => {
    const sampling = { ...request.sampling, seed: request.sampling.seed + choice };
    try {
      return await service.answer({ ...request, lease, sampling, signal }, (chunk) => onChunk(choice, chunk));
    } catch (error) {
      failed.abort();
      throw error;
    }
  });
  await Promise.allSettled(answers);
  return Promise.all(answers);
}
