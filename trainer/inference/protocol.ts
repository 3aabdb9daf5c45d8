/** What the HTTP side and its worker threads say to each other. Plain data: it is cloned on the way. */

import type { StopCommand } from "../stop-worker.ts";
import type { ErrorCode } from "#shared/errors.ts";
import type { Architecture } from "../model/architecture.ts";
import type { DecoderOptions, SequenceRequest } from "./decoder.ts";
import type { AnswerForm } from "./json-schema-grammar.ts";
import type { Alternative } from "./sampling.ts";
import type { Vocabulary } from "./token-matcher.ts";

/** To a decode worker. */
export type DecodeCommand =
  | {
      readonly type: "load";
      readonly version: string;
      /** An encoded decode graph. */
      readonly graph: Uint8Array;
      readonly architecture: Architecture;
      readonly options: DecoderOptions;
    }
  | { readonly type: "unload"; readonly version: string }
  /** Needed before the first answer that has a form. */
  | { readonly type: "vocabulary"; readonly vocabulary: Vocabulary }
  /** Sample nothing until this version is loaded and was asked; it ends by itself soon. */
  | { readonly type: "hold"; readonly version: string }
  | { readonly type: "release"; readonly version: string }
  | {
      readonly type: "submit";
      readonly version: string;
      readonly request: SequenceRequest;
      /** What the answer must be like; null for anything. */
      readonly form: AnswerForm | null;
      /** `each` reports every token as it is drawn, `whole` all of them at the end. */
      readonly report: "each" | "whole";
    }
  | { readonly type: "cancel"; readonly id: number }
  | StopCommand;

/** Tokens of one sequence that were not reported before. */
export interface TokenReport {
  readonly id: number;
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
  /** One list a token, or null where none were asked for. */
  readonly alternatives: readonly (readonly Alternative[])[] | null;
  readonly finish: "stop" | "length" | null;
  /** Prompt tokens that the prefix cache spared; in the first report of a sequence. */
  readonly cachedTokens: number | null;
}

/** From a decode worker. */
export type DecodeEvent =
  /** The graph comes back: the next thread can have it without a copy. */
  | { readonly type: "loaded"; readonly version: string; readonly graph: Uint8Array }
  | { readonly type: "load_failed"; readonly version: string; readonly message: string }
  | { readonly type: "unloaded"; readonly version: string }
  | { readonly type: "tokens"; readonly reports: readonly TokenReport[] }
  | { readonly type: "failed"; readonly ids: readonly number[]; readonly message: string };

/** To the loader worker. */
export type LoaderCommand = LoadCommand | StopCommand;

/** Asks for a version's decode graph. */
export interface LoadCommand {
  readonly type: "load";
  readonly serial: number;
  readonly version: string;
  /** Folder of an adapter or of full weights; null for the base model itself. */
  readonly path: string | null;
}

/** From the loader worker. */
export type LoadEvent =
  | { readonly type: "ready"; readonly architecture: Architecture; readonly contextTokens: number }
  | { readonly type: "built"; readonly serial: number; readonly graph: Uint8Array; readonly digest: string }
  | { readonly type: "failed"; readonly serial: number | null; readonly code: ErrorCode; readonly message: string };

/**
 * The buffer to be moved instead of copied when these bytes are posted; the sender cannot use them afterwards. Nothing
 * where the bytes are only a part of it: small ones share Node's pool.
 */
export function movable({ buffer, byteLength }: Uint8Array): ArrayBuffer[] {
  return buffer instanceof ArrayBuffer && buffer.byteLength === byteLength ? [buffer] : [];
}
