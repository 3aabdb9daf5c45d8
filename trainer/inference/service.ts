/**
 * The endpoint without HTTP: a model folder, its loaded versions and the threads that sample from them.
 * `answer` takes one prompt through all of it.
 */

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import * as z from "zod";
import { FulgurError } from "#shared/errors.ts";
import type { Architecture } from "../model/architecture.ts";
import { type ChatTemplate, loadChatTemplate } from "../model/chat-template.ts";
import { loadTokenizer, type Tokenizer } from "../model/tokenizer.ts";
import type { ToolCallFormat } from "../model/tool-call.ts";
import { toolCallFormatOf } from "../model/tool-call-formats.ts";
import { type AnswerChunk, AnswerReader, type FinishReason } from "./answer.ts";
import { artifactDigest } from "./artifact.ts";
import type { ServePrecision } from "./config.ts";
import { Continuation } from "./continuation.ts";
import { DecodePool, type RunningSequence } from "./decode-pool.ts";
import { FormMatchers } from "./form-matchers.ts";
import type { AnswerForm } from "./json-schema-grammar.ts";
import { startLoader } from "./loader.ts";
import type { LogitAdjustments } from "./logit-rules.ts";
import { type Gauges, Metrics } from "./metrics.ts";
import type { SamplingOptions } from "./sampling.ts";
import { vocabularyOf } from "./token-matcher.ts";
import { type VersionLease, Versions } from "./versions.ts";

/** What the endpoint is started with; see `config.ts` for the meaning and bounds of each. */
export interface ServiceOptions {
  readonly modelDir: string;
  readonly baseName: string;
  readonly adapterDir: string | null;
  readonly precision: ServePrecision;
  readonly threads: number;
  readonly maxSequences: number;
  readonly maxWaiting: number;
  readonly maxVersions: number;
  readonly maxContextTokens: number;
  readonly prefixCacheBytes: number;
  readonly continuationTokens: number;
  readonly prefillTokensPerStep: number;
  /** Called when a thread died: answers fail from then on and the process should be started again. */
  readonly fatal: (error: Error) => void;
}

/** What stays the same for all versions. */
export interface ServedModel {
  readonly architecture: Architecture;
  readonly tokenizer: Tokenizer;
  readonly template: ChatTemplate | null;
  readonly toolCalls: ToolCallFormat;
  readonly contextTokens: number;
  /** Ids that end an answer. */
  readonly stopIds: readonly number[];
}

/** One prompt to be answered. */
export interface AnswerRequest {
  readonly lease: VersionLease;
  readonly promptIds: Int32Array;
  readonly sampling: SamplingOptions;
  readonly adjustments: LogitAdjustments | null;
  /** What the answer must be like; null for anything. */
  readonly form: AnswerForm | null;
  /** Null: as many as the context has room for. */
  readonly maxTokens: number | null;
  readonly stop: readonly string[];
  readonly stopIds: readonly number[];
  readonly topLogprobs: number;
  readonly toolCalls: ToolCallFormat | null;
  /** `each` calls back for every token; `whole` once, at the end. */
  readonly report: "each" | "whole";
  readonly preferredThread: number | null;
  /** Aborted when the client leaves: the row is freed. */
  readonly signal: AbortSignal;
}

/** How an answer ended. */
export interface AnswerSummary {
  readonly finish: FinishReason | "abort";
  readonly cachedTokens: number;
  /** Where its keys and values are. */
  readonly thread: number;
}

const endIds = z.union([z.int().nonnegative(), z.array(z.int().nonnegative())]);
const generationConfigSchema = z.looseObject({ eos_token_id: endIds.nullish() });
const tokenizerConfigSchema = z.looseObject({
  eos_token: z.union([z.string(), z.looseObject({ content: z.string() }).transform((t) => t.content)]).nullish(),
});

/** A running endpoint. */
export class InferenceService {
  readonly model: ServedModel;
  readonly versions: Versions;
  readonly metrics = new Metrics();
  /** Null when the model has no chat template. */
  readonly continuation: Continuation | null;
  readonly #pool: DecodePool;
  readonly #options: ServiceOptions;
  readonly #closeLoader: () => Promise<void>;
  /** Made for the first answer that has a form. */
  #forms: FormMatchers | null = null;

  private constructor(
    model: ServedModel,
    versions: Versions,
    pool: DecodePool,
    options: ServiceOptions,
    closeLoader: () => Promise<void>,
  ) {
    this.model = model;
    this.versions = versions;
    this.#pool = pool;
    this.#options = options;
    this.#closeLoader = closeLoader;
    this.continuation =
      model.template === null
        ? null
        : new Continuation({
            template: model.template,
            tokenizer: model.tokenizer,
            stopIds: model.stopIds,
            maxIds: options.continuationTokens,
          });
  }

  /**
   * Reads the model folder, starts the threads and loads the base model.
   * @throws FulgurError ERR_MODEL when the folder cannot be used
   */
  static async start(options: ServiceOptions): Promise<InferenceService> {
    const { modelDir, baseName } = options;
    const [tokenizer, template] = await Promise.all([loadTokenizer(modelDir), loadChatTemplate(modelDir)]);
    const loader = await startLoader(modelDir, options);
    const { architecture, contextTokens } = loader;
    const pool = new DecodePool(options.threads, options.fatal);
    try {
      if (tokenizer.vocab > architecture.vocab) {
        throw new FulgurError(
          "ERR_MODEL",
          `${modelDir}: the tokenizer has ${tokenizer.vocab} ids, but the model only ${architecture.vocab}; they do not belong together.`,
        );
      }
      const decoderOptions = {
        maxSequences: Math.max(1, Math.ceil(options.maxSequences / options.threads)),
        // Each version has a cache of its own in each thread.
        prefixCacheBytes: Math.floor(options.prefixCacheBytes / options.threads),
        prefillTokensPerStep: options.prefillTokensPerStep,
      };
      const versions = new Versions(
        {
          async load(name, path) {
            pool.hold(name);
            try {
              const { graph, digest } = await loader.build(name, path);
              await pool.load(name, graph, architecture, decoderOptions);
              return digest;
            } catch (error) {
              pool.release(name);
              throw error;
            }
          },
          unload: (name) => pool.unload(name),
          digest: artifactDigest,
        },
        {
          baseName,
          adapterDir: options.adapterDir,
          maxVersions: options.maxVersions,
          nowMs: () => Date.now(),
        },
      );
      await versions.load(baseName, null);
      const stopIds = await readStopIds(modelDir, architecture, tokenizer);
      const model: ServedModel = {
        architecture,
        tokenizer,
        template,
        toolCalls: toolCallFormatOf(template?.source ?? ""),
        contextTokens,
        stopIds,
      };
      return new InferenceService(model, versions, pool, options, () => loader.close());
    } catch (error) {
      await Promise.all([pool.close(), loader.close()]);
      throw error;
    }
  }

  /** Name of the base model. */
  get baseName(): string {
    return this.#options.baseName;
  }

  /** Requests running and waiting now. */
  gauges(): Gauges {
    const { sequences } = this.#pool;
    const running = Math.min(sequences, this.#options.maxSequences);
    return { running, waiting: sequences - running };
  }

  /**
   * Samples an answer and releases the lease when it ends.
   * @param onChunk gets the pieces in order; the last one has a finish reason
   * @throws FulgurError ERR_INVALID_REQUEST when it does not fit the context, ERR_OVERLOADED when too many wait,
   * ERR_INTERNAL when the runtime fails
   */
  async answer(request: AnswerRequest, onChunk: (chunk: AnswerChunk) => void): Promise<AnswerSummary> {
    const { lease, promptIds, signal } = request;
    const startedMs = performance.now();
    let firstTokenMs: number | null = null;
    let generationTokens = 0;
    let cachedTokens = 0;
    let reason = "error";
    try {
      const maxTokens = this.#roomFor(request);
      if (request.form !== null) this.#proveForm(request.form, request.stopIds);
      const { maxSequences, maxWaiting } = this.#options;
      if (this.#pool.sequences >= maxSequences + maxWaiting) {
        throw new FulgurError(
          "ERR_OVERLOADED",
          `${this.#pool.sequences} requests are running or waiting; try again soon.`,
        );
      }
      const reader = new AnswerReader({
        tokenizer: this.model.tokenizer,
        stop: request.stop,
        toolCalls: request.toolCalls,
      });
      const ended = Promise.withResolvers<FinishReason | "abort">();
      const sequence: RunningSequence = this.#pool.submit(
        lease.name,
        {
          prompt: promptIds,
          maxTokens,
          sampling: request.sampling,
          adjustments: request.adjustments,
          stopIds: request.stopIds,
          topLogprobs: request.topLogprobs,
        },
        {
          tokens: (report) => {
            firstTokenMs ??= performance.now();
            cachedTokens += report.cachedTokens ?? 0;
            const chunk = reader.push(report);
            generationTokens += chunk.tokens.length;
            onChunk(chunk);
            if (chunk.finish === null) return;
            if (report.finish === null) sequence.cancel();
            ended.resolve(chunk.finish);
          },
          fail: (error) => ended.reject(error),
        },
        // A stop string may end an answer early, so somebody has to look while it grows.
        {
          report: request.stop.length > 0 ? "each" : request.report,
          form: request.form,
          preferredThread: request.preferredThread ?? undefined,
        },
      );
      const leave = (): void => {
        sequence.cancel();
        ended.resolve("abort");
      };
      signal.addEventListener("abort", leave, { once: true });
      if (signal.aborted) leave();
      const finish = await ended.promise.finally(() => signal.removeEventListener("abort", leave));
      reason = finish === "tool_calls" ? "stop" : finish;
      return { finish, cachedTokens, thread: sequence.thread };
    } finally {
      lease.release();
      this.metrics.record({
        model: lease.name,
        promptTokens: promptIds.length,
        cachedTokens,
        generationTokens,
        firstTokenSeconds: firstTokenMs === null ? null : (firstTokenMs - startedMs) / 1000,
        totalSeconds: (performance.now() - startedMs) / 1000,
        reason,
      });
    }
  }

  /** Ends all threads at once; running answers are lost. */
  async close(): Promise<void> {
    await Promise.all([this.#pool.close(), this.#closeLoader()]);
  }

  /** @throws FulgurError ERR_INVALID_REQUEST when no answer can have this form */
  #proveForm(form: AnswerForm, stopIds: readonly number[]): void {
    if (this.#forms === null) {
      const vocabulary = vocabularyOf(this.model.tokenizer);
      this.#forms = new FormMatchers(vocabulary);
      this.#pool.learn(vocabulary);
    }
    this.#forms.matcher(form, stopIds);
  }

  #roomFor({ promptIds, maxTokens }: AnswerRequest): number {
    const { contextTokens, architecture } = this.model;
    const invalid = promptIds.find((id) => id < 0 || id >= architecture.vocab);
    if (invalid !== undefined) {
      throw new FulgurError(
        "ERR_INVALID_REQUEST",
        `prompt: ${invalid} is no token id of this model (0 … ${architecture.vocab - 1}).`,
      );
    }
    if (promptIds.length === 0)
      throw new FulgurError("ERR_INVALID_REQUEST", "prompt: is empty; give at least one token.");
    const room = contextTokens - promptIds.length;
    const wanted = maxTokens ?? Math.max(1, room);
    if (wanted > room) {
      throw new FulgurError(
        "ERR_INVALID_REQUEST",
        `This model's maximum context length is ${contextTokens} tokens, but the request has ${promptIds.length} in the prompt and ${wanted} for the answer. Shorten the prompt or lower max_tokens.`,
      );
    }
    return wanted;
  }
}

/** Ids that end an answer, from all three places where a model folder may name them. */
async function readStopIds(modelDir: string, architecture: Architecture, tokenizer: Tokenizer): Promise<number[]> {
  const read = async (file: string): Promise<unknown> => {
    try {
      return JSON.parse(await readFile(join(modelDir, file), "utf8"));
    } catch {
      return {};
    }
  };
  const generation = generationConfigSchema.safeParse(await read("generation_config.json")).data?.eos_token_id ?? [];
  const named = tokenizerConfigSchema.safeParse(await read("tokenizer_config.json")).data?.eos_token ?? null;
  const ofName = named === null ? undefined : tokenizer.idOf(named);
  return [
    ...new Set([
      ...(typeof generation === "number" ? [generation] : generation),
      ...architecture.eosTokenIds,
      ...(ofName === undefined ? [] : [ofName]),
    ]),
  ];
}
