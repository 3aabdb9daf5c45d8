import { createParser } from "eventsource-parser";

/** The `data` of each event in a stream of bytes, as they complete. */
export function eventReader(): (bytes: Uint8Array) => string[] {
  const decoder = new TextDecoder();
  let events: string[] = [];
  const parser = createParser({
    onEvent: ({ data }) => {
      events.push(data);
    },
  });
  return (bytes) => {
    events = [];
    parser.feed(decoder.decode(bytes, { stream: true }));
    return events;
  };
}

/** One event, ready to send. */
export function event(data: string): string {
  return `data: ${data}\n\n`;
}

export const DONE = event("[DONE]");

/** A comment, which every client passes over. */
export const HEARTBEAT = ": waiting\n\n";
