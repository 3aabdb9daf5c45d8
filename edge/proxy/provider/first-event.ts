import { eventReader } from "../sse.ts";

/** How long a first event is waited for; past it the client is not to wait for its headers any longer. */
const WAIT_MS = 2000;

/** A stream from its beginning, and the data of its first event where that comes soon. */
export interface Begun {
  readonly stream: Response;
  readonly first: string | undefined;
}

/** Looks ahead in a stream of events. */
export async function firstEvent(response: Response): Promise<Begun> {
  if (response.body === null) return { stream: response, first: undefined };
  const [ahead, whole] = response.body.tee();
  const reader = ahead.getReader();
  const late = Promise.withResolvers<undefined>();
  const timer = setTimeout(() => late.resolve(undefined), WAIT_MS);
  // Where it breaks, whoever reads the whole of it is told.
  const first = await Promise.race([firstOf(reader), late.promise]).catch(() => undefined);
  clearTimeout(timer);
  // Ends only with the other branch.
  void reader.cancel().catch(() => undefined);
  return { stream: new Response(whole, response), first };
}

async function firstOf(reader: ReadableStreamDefaultReader<Uint8Array>): Promise<string | undefined> {
  const read = eventReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return undefined;
    const [first] = read(value);
    if (first !== undefined) return first;
  }
}
