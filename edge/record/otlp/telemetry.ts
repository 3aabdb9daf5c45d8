import type { Json } from "#shared/tables.ts";

/** What an OTLP request carries, whatever its encoding: spans and events with their resource's attributes. */

export type Attributes = Readonly<Record<string, Json>>;

export interface TelemetrySpan {
  /** Hex, 32 characters. */
  readonly traceId: string;
  /** Hex, 16 characters. */
  readonly spanId: string;
  readonly parentId: string | null;
  readonly name: string;
  /** Milliseconds since the epoch. */
  readonly startedAt: number;
  readonly finishedAt: number | null;
  readonly attributes: Attributes;
  readonly resource: Attributes;
  readonly events: readonly TelemetryEvent[];
  /** Whether its status is ERROR. */
  readonly failed: boolean;
  readonly statusMessage: string;
}

/** An event of a span, or a log record with an event name. */
export interface TelemetryEvent {
  readonly name: string;
  readonly at: number;
  readonly attributes: Attributes;
}

/** A log record that is an event, with the span it belongs to, if any. */
export interface TelemetryLog extends TelemetryEvent {
  readonly traceId: string | null;
  readonly spanId: string | null;
  readonly resource: Attributes;
}

/** Nested values deeper than this are cut to null: attributes are flat in practice, and a parser must end. */
export const MAX_DEPTH = 16;
