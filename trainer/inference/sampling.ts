/** From one row of probabilities to one token. Pure; the caller brings the uniform number. */

/** How a request wants its tokens drawn. */
export interface SamplingOptions {
  /** 0 takes the most probable token; else the logits were divided by it before the softmax. */
  readonly temperature: number;
  /** Keep the smallest set of tokens whose probability reaches this; 1 keeps all. */
  readonly topP: number;
  /** Keep this many most probable tokens; 0 keeps all. */
  readonly topK: number;
  /** Same seed, same prompt, same weights: same tokens, whatever else is being answered. */
  readonly seed: number;
}

/** A drawn token, with its log-probability under the distribution that it was drawn from. */
export interface Draw {
  readonly token: number;
  /** Nats. After top-p and top-k, since those change the distribution; for greedy, of the plain softmax. */
  readonly logprob: number;
}

/** One of the most probable tokens of a position. */
export interface Alternative {
  readonly token: number;
  readonly logprob: number;
}

/**
 * Draws a token.
 * @param probabilities_V softmax of the scaled logits, sums to about 1
 * @param uniform in [0, 1); unused when greedy
 */
export function drawToken(probabilities_V: Float32Array, options: SamplingOptions, uniform: number): Draw {
  if (options.temperature === 0) {
    const token = mostProbable(probabilities_V);
    const p = probabilities_V[token] ?? 0;
    if (!(p > 0)) throw noProbabilities();
    return { token, logprob: Math.log(p) };
  }
  if (options.topP < 1 || (options.topK > 0 && options.topK < probabilities_V.length)) {
    return drawFromKept(keptTokens(probabilities_V, options), uniform);
  }
  let total = 0;
  for (let v = 0; v < probabilities_V.length; v++) total += probabilities_V[v] ?? 0;
  if (!(total > 0)) throw noProbabilities();
  const target = uniform * total;
  let cumulative = 0;
  let token = 0;
  for (let v = 0; v < probabilities_V.length; v++) {
    const p = probabilities_V[v] ?? 0;
    if (p === 0) continue;
    cumulative += p;
    // Rounding may leave the sum below the target: then the last possible token stands.
    token = v;
    if (cumulative > target) break;
  }
  return { token, logprob: Math.log((probabilities_V[token] ?? 0) / total) };
}

/**
 * The most probable tokens under the distribution that `drawToken` draws from, most probable first.
 * @param count fewer come back where top-p or top-k keep fewer
 */
export function topAlternatives(probabilities_V: Float32Array, options: SamplingOptions, count: number): Alternative[] {
  const greedy = options.temperature === 0;
  const kept = greedy
    ? mostProbableOf(probabilities_V, count)
    : keptTokens(probabilities_V, {
        ...options,
        topK: options.topP < 1 || options.topK > 0 ? options.topK : count,
      });
  // Only a restricted distribution is renormalised; plain ones are reported as the softmax gives them.
  const restricted = !greedy && (options.topP < 1 || options.topK > 0);
  const total = restricted ? kept.reduce((sum, { p }) => sum + p, 0) : 1;
  return kept.slice(0, count).map(({ token, p }) => ({ token, logprob: Math.log(p / total) }));
}

/**
 * A uniform number that depends on nothing but its arguments, so that a seeded request does not care
 * how many others are drawn beside it.
 * @param seed any safe integer
 * @param index position of the token in its answer
 * @returns in [0, 1), 53 bits
 */
export function uniformAt(seed: number, index: number): number {
  const low = seed | 0;
  const high = Math.floor(seed / 2 ** 32) | 0;
  const base = mix(low ^ mix(high ^ 0x9e3779b9));
  const a = mix(base + Math.imul(index + 1, 0x9e3779b9));
  const b = mix(a ^ mix(base + Math.imul(index + 1, 0x85ebca6b) + 0x27d4eb2f));
  return ((a >>> 5) * 2 ** 26 + (b >>> 6)) / 2 ** 53;
}

/** The 32-bit finaliser of MurmurHash3. */
function mix(value: number): number {
  let h = value | 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

interface Kept {
  readonly token: number;
  readonly p: number;
}

function drawFromKept(kept: readonly Kept[], uniform: number): Draw {
  const total = kept.reduce((sum, { p }) => sum + p, 0);
  const target = uniform * total;
  let cumulative = 0;
  let drawn: Kept | undefined;
  for (const candidate of kept) {
    cumulative += candidate.p;
    drawn = candidate;
    if (cumulative > target) break;
  }
  if (drawn === undefined) throw noProbabilities();
  return { token: drawn.token, logprob: Math.log(drawn.p / total) };
}

function noProbabilities(): RangeError {
  return new RangeError("The model gave no probabilities; are its weights finite?");
}

/** What top-k and then top-p leave, most probable first; ties go to the lower id. */
function keptTokens(probabilities_V: Float32Array, { topP, topK }: SamplingOptions): Kept[] {
  // A token below this cannot be in the nucleus: all such tokens together weigh less than 1 − topP.
  const floor = topP < 1 ? (1 - topP) / probabilities_V.length : 0;
  const candidates = mostProbableOf(probabilities_V, topK > 0 ? topK : probabilities_V.length, floor);
  if (topP >= 1) return candidates;
  const total = topK > 0 ? candidates.reduce((sum, { p }) => sum + p, 0) : 1;
  let cumulative = 0;
  let count = 0;
  for (const { p } of candidates) {
    count++;
    cumulative += p;
    if (cumulative >= topP * total) break;
  }
  return candidates.slice(0, Math.max(1, count));
}

function mostProbableOf(probabilities_V: Float32Array, count: number, floor = 0): Kept[] {
  const kept: Kept[] = [];
  for (let token = 0; token < probabilities_V.length; token++) {
    const p = probabilities_V[token] ?? 0;
    if (p > 0 && p >= floor) kept.push({ token, p });
  }
  kept.sort((a, b) => b.p - a.p || a.token - b.token);
  return kept.slice(0, count);
}

function mostProbable(probabilities_V: Float32Array): number {
  let best = 0;
  for (let v = 1; v < probabilities_V.length; v++) {
    if ((probabilities_V[v] ?? 0) > (probabilities_V[best] ?? 0)) best = v;
  }
  return best;
}
