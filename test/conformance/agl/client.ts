/** A server of Agent Lightning's REST surface, asked with plain HTTP. */
export interface AglTarget {
  /** Without a trailing slash. */
  readonly url: string;
  /** A bearer key that may do everything there. */
  readonly key: string;
  /** In place of the network. */
  readonly fetch?: (request: Request) => Promise<Response> | Response;
}

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  /** JSON, or the text where it is none. */
  readonly body: unknown;
}

export interface Ask {
  readonly body?: unknown;
  /** Sent as it is, in place of `body`. */
  readonly text?: string;
  /** Null: none. */
  readonly key?: string | null;
}

export interface AglClient {
  ask(method: string, path: string, options?: Ask): Promise<Answer>;
  /** The JSON of an answer that has to be a success. */
  must(method: string, path: string, body?: unknown): Promise<Loose>;
  /** A new rollout's id. */
  create(fields?: Readonly<Record<string, unknown>>): Promise<string>;
  move(id: string, ...states: readonly string[]): Promise<void>;
}

/** JSON that a test looks into. */
// oxlint-disable-next-line typescript/no-explicit-any -- a test reads what it then asserts
export type Loose = any;

export function aglClient({ url, key: good, fetch: send = fetch }: AglTarget): AglClient {
  async function ask(method: string, path: string, { body, text, key = good }: Ask = {}): Promise<Answer> {
    const sent = text ?? (body === undefined ? undefined : JSON.stringify(body));
    const response = await send(
      new Request(`${url}${path}`, {
        method,
        headers: {
          ...(key === null ? {} : { authorization: `Bearer ${key}` }),
          ...(sent === undefined ? {} : { "content-type": "application/json" }),
        },
        ...(sent === undefined ? {} : { body: sent }),
      }),
    );
    const given = await response.text();
    let parsed: unknown = given;
    try {
      parsed = JSON.parse(given);
    } catch {
      // A text then.
    }
    return { status: response.status, headers: response.headers, body: parsed };
  }
  async function must(method: string, path: string, body?: unknown): Promise<Loose> {
    const answer = await ask(method, path, body === undefined ? {} : { body });
    if (answer.status >= 300) throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
    return answer.body;
  }
  return {
    ask,
    must,
    async create(fields = {}) {
      const [rollout] = await must("POST", "/api/rollouts", [{ input: { prompt: "hi" }, ...fields }]);
      return rollout.rollout_id;
    },
    async move(id, ...states) {
      for (const state of states) await must("PATCH", `/api/rollouts/${id}`, { status: { state } });
    },
  };
}
