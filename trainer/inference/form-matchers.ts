/** Matchers by the form of an answer: each form is compiled once for all answers that have it. */

import { FulgurError } from "#shared/errors.ts";
import { Grammar } from "./grammar.ts";
import { type AnswerForm, formGrammar } from "./json-schema-grammar.ts";
import { TokenGrammar, type TokenMatcher, type Vocabulary } from "./token-matcher.ts";

/** Forms that are kept compiled. */
const MAX_FORMS = 32;

/** The forms in use. */
export class FormMatchers {
  readonly #vocabulary: Vocabulary;
  /** By form as JSON, the least recently used first. */
  readonly #grammars = new Map<string, TokenGrammar>();

  constructor(vocabulary: Vocabulary) {
    this.#vocabulary = vocabulary;
  }

  /**
   * Begins an answer of a form.
   * @throws FulgurError ERR_INVALID_REQUEST when the form is not supported, or no token can begin it
   */
  matcher(form: AnswerForm, stopIds: readonly number[]): TokenMatcher {
    const { key, grammar } = this.#compiled(form);
    const matcher = grammar.matcher(stopIds);
    if (matcher.allowed().length === 0) {
      throw new FulgurError("ERR_INVALID_REQUEST", "response_format: no text that this model can write has this form.");
    }
    this.#grammars.delete(key);
    this.#grammars.set(key, grammar);
    if (this.#grammars.size > MAX_FORMS)
      for (const oldest of this.#grammars.keys().take(1)) this.#grammars.delete(oldest);
    return matcher;
  }

  #compiled(form: AnswerForm): { readonly key: string; readonly grammar: TokenGrammar } {
    try {
      const key = JSON.stringify(form);
      const known = this.#grammars.get(key);
      return { key, grammar: known ?? new TokenGrammar(new Grammar(formGrammar(form)), this.#vocabulary) };
    } catch (cause) {
      // Depth is unbounded where a schema holds plain values, such as those of an enum.
      if (!(cause instanceof RangeError)) throw cause;
      throw new FulgurError("ERR_INVALID_REQUEST", "response_format: the schema is nested too deeply.", { cause });
    }
  }
}
