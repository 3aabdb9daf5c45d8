import { FulgurError, messageOf } from "#shared/errors.ts";
import { newId } from "#shared/ids.ts";
import { packFloats, packIds } from "#shared/packed.ts";
import { recordCall } from "#shared/store/calls.ts";
import type { EncodedStatement, Statement, StoreWriter } from "#shared/store/statement.ts";
import { openOutbox, type Outbox } from "../../../edge/record/outbox.ts";
import { storeWriter, type WriterStub } from "../../../edge/record/writer-client.ts";
import { withBytes, withoutBytes } from "../../support/bytes-in-json.ts";

export { Writer } from "../../../edge/record/writer.ts";

/** A Worker around the writer, for its tests: the RPC methods as routes, and a call record of about 4 KB. */

/** What is used of a Durable Object namespace; the tests' project has Node's types, not workerd's. */
interface Namespace<Stub> {
  idFromName(name: string): unknown;
  newUniqueId(): unknown;
  get(id: unknown): Stub;
}

interface Env {
  readonly WRITER: Namespace<WriterStub>;
  readonly OUTBOX: Namespace<{ fetch(url: string, init: RequestInit): Promise<Response> }>;
}

interface State {
  readonly storage: {
    readonly sql: Parameters<typeof openOutbox>[0];
    transactionSync(work: () => void): void;
  };
}

/** One step of an outbox's script; `take` peeks and removes, `aside` sets the first unit aside. */
export type OutboxStep =
  | { readonly do: "put"; readonly units: EncodedStatement[][] }
  | { readonly do: "take" | "peek"; readonly units: number; readonly bytes: number }
  | { readonly do: "aside"; readonly reason: string }
  | { readonly do: "reopen" };

/** An outbox with room for 5 units or 3 MB, run step by step; answers what each step gave. */
export class OutboxHost {
  readonly #storage: State["storage"];

  constructor({ storage }: State) {
    this.#storage = storage;
  }

  async fetch(request: Request): Promise<Response> {
    const steps = JSON.parse(await request.text(), withBytes) as OutboxStep[];
    const bounds = { maxUnits: 5, maxBytes: 3_000_000 };
    let outbox = openOutbox(this.#storage.sql, bounds);
    const outcomes = steps.map((step) => {
      try {
        if (step.do === "reopen") outbox = openOutbox(this.#storage.sql, bounds);
        return this.#take(outbox, step);
      } catch (error) {
        return error instanceof FulgurError ? error.code : messageOf(error);
      }
    });
    return new Response(JSON.stringify(outcomes, withoutBytes));
  }

  #take(outbox: Outbox, step: OutboxStep): unknown {
    if (step.do === "put") this.#storage.transactionSync(() => outbox.put(step.units));
    if (step.do === "peek" || step.do === "take") {
      const units = outbox.peek(step);
      if (step.do === "take") outbox.remove(units);
      return units.map((unit) => unit.statements);
    }
    if (step.do === "aside") {
      const [first] = outbox.peek({ units: 1, bytes: 1 });
      if (first !== undefined) outbox.setAside(first, step.reason, 1);
      return this.#storage.sql.exec("select reason, body from refused").toArray();
    }
    return outbox.size;
  }
}

export default {
  async fetch(request: Request, env: Env): Promise<Response> {
    const writer = storeWriter(env.WRITER.get(env.WRITER.idFromName("writer")));
    try {
      return new Response(JSON.stringify(await answer(new URL(request.url), request, { writer, env }), withoutBytes));
    } catch (error) {
      const code = error instanceof FulgurError ? error.code : "not a FulgurError";
      return Response.json({ code, message: messageOf(error) }, { status: 500 });
    }
  },
};

interface Parts {
  readonly writer: StoreWriter;
  readonly env: Env;
}

async function answer(url: URL, request: Request, { writer, env }: Parts): Promise<unknown> {
  switch (url.pathname) {
    case "/append":
      await writer.append(JSON.parse(await request.text(), withBytes) as Statement[][]);
      return {};
    case "/transact":
      return writer.transact(JSON.parse(await request.text(), withBytes) as Statement[]);
    case "/status":
      return writer.status();
    case "/record": {
      const call = sampleCall(url.searchParams.get("rollout") ?? "ro_test");
      await writer.append([recordCall(call)]);
      return { id: call.id };
    }
    // So many records from so many loops inside workerd: what the writer itself can do, without an HTTP client.
    case "/load": {
      let left = Number(url.searchParams.get("records"));
      const loops = Array.from({ length: Number(url.searchParams.get("loops")) }, async () => {
        while (left-- > 0) await writer.append([recordCall(sampleCall("ro_load"))]);
      });
      await Promise.all(loops);
      return {};
    }
    case "/outbox": {
      const outbox = env.OUTBOX.get(env.OUTBOX.newUniqueId());
      const outcomes = await outbox.fetch("http://outbox/", {
        method: "POST",
        body: await request.text(),
      });
      return JSON.parse(await outcomes.text(), withBytes);
    }
    case "/nothing":
      return {};
    default:
      throw new Error(`no route ${url.pathname}`);
  }
}

const PROMPT = "Which flight should Ada take to Lisbon? ".repeat(40);

function sampleCall(rolloutId: string): Parameters<typeof recordCall>[0] {
  const promptIds = Array.from({ length: 300 }, (_, at) => at);
  const responseIds = Array.from({ length: 64 }, (_, at) => at);
  return {
    id: newId("call"),
    tenantId: "default",
    rolloutId,
    attempt: 1,
    dialect: "chat",
    modelAsked: "flight",
    policy: "flight",
    policyVersion: 13,
    modelAnswered: "flight@13",
    request: JSON.stringify({ messages: [{ role: "user", content: PROMPT }] }),
    response: JSON.stringify({ role: "assistant", content: "The 9:40." }),
    promptTokens: 300,
    completionTokens: 64,
    promptTokenIds: packIds(promptIds),
    responseTokenIds: packIds(responseIds),
    behaviourLogprobs: packFloats(responseIds.map(() => -0.5)),
    temperature: 1,
    finishReason: "stop",
    httpStatus: 200,
    trainable: true,
    firstByteMs: 3,
    latencyMs: 12.5,
    createdAt: Date.now(),
    mode: "train",
  };
}
