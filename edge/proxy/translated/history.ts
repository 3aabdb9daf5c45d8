import { sql } from "drizzle-orm";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import type { StoreWriter } from "#shared/store/statement.ts";
import { storeAway } from "../admission.ts";
import type { ChatMessage, ParseOptions } from "../dialect.ts";
import { responses } from "../responses/responses.ts";

export interface HistoryOptions {
  readonly db: () => StoreDb;
  readonly writer: Pick<StoreWriter, "status">;
  /** Whose calls may be gone on from. */
  readonly tenantId: string;
  readonly rolloutId: string;
}

/** How many answers back a `previous_response_id` reaches. */
const MAX_TURNS = 512;

/**
 * What a `previous_response_id` and an item's reference stand for: each call has its own request and answer only, so a
 * conversation is put together from the calls that it names, which are read in one question.
 */
export function storedHistory(options: HistoryOptions): Required<ParseOptions> {
  const turns = new Map<string, Turn>();
  const conversations = new Map<string, Promise<readonly ChatMessage[]>>();

  async function turnOf(responseId: string): Promise<Turn> {
    if (!turns.has(responseId))
      for (const turn of await readTurns(options, responseId)) turns.set(turn.responseId, turn);
    const turn = turns.get(responseId);
    if (turn !== undefined) return turn;
    // A record may wait in the writer's outbox, where nobody can read it.
    const { storeUp, outbox } = await options.writer.status();
    if (!storeUp || outbox > 0) throw storeAway();
    throw new FulgurError(
      "ERR_INVALID_REQUEST",
      `there is no response ${responseId} in this session; send the whole conversation as input`,
    );
  }

  async function conversationAfter(responseId: string): Promise<readonly ChatMessage[]> {
    const { request, answer } = await turnOf(responseId);
    const { conversation } = await responses.parse(request, history);
    return [...conversation, answer];
  }

  const history: Required<ParseOptions> = {
    history(responseId) {
      const found = conversations.get(responseId) ?? conversationAfter(responseId);
      conversations.set(responseId, found);
      return found;
    },
    answer: async (responseId) => (await turnOf(responseId)).answer,
  };
  return history;
}

interface Turn {
  readonly responseId: string;
  /** The request as it came, JSON. */
  readonly request: string;
  readonly answer: ChatMessage;
}

const answerSchema = z.looseObject({ role: z.literal("assistant") });
const turnRow = z.object({ id: z.string(), request: z.string(), response: z.string().nullable() });

/** The request of a call whose content was not stored. */
const UNSAMPLED = "{}";

/** The call of a response and those before it that its requests name. */
async function readTurns({ db, tenantId, rolloutId }: HistoryOptions, responseId: string): Promise<Turn[]> {
  // A session that went on after a long silence is another rollout of the same session.
  const isReachable = sql`c.tenant_id = ${tenantId} and c.dialect = 'responses' and (
    c.rollout_id = ${rolloutId} or exists (
      select 1 from rollouts mine join rollouts other
        on other.session_id = mine.session_id and other.agent = mine.agent and other.tenant_id = mine.tenant_id
      where mine.id = ${rolloutId} and other.id = c.rollout_id and mine.tenant_id = ${tenantId}))`;
  const rows = await db().all(sql`
    with recursive turns (id, request, response, n) as (
      select c.id, c.request, c.response, 0 from calls c
      where c.id = ${callIdOf(responseId)} and ${isReachable}
      union all
      select c.id, c.request, c.response, n + 1
      from turns t join calls c on c.id = 'ca_' || substr(t.request ->> 'previous_response_id', length('resp_') + 1)
      where n < ${MAX_TURNS} and ${isReachable}
    ) select id, request, response from turns`);
  const stored = rows.map((row) => turnRow.parse(row)).filter(({ request }) => request !== UNSAMPLED);
  return stored.map(({ id, request, response }) => {
    const answer = answerSchema.safeParse(response === null ? null : JSON.parse(response));
    return {
      responseId: `resp_${id.slice("ca_".length)}`,
      request,
      // A call that brought no answer is gone on from with what was asked.
      answer: answer.success ? answer.data : { role: "assistant", content: null },
    };
  });
}

function callIdOf(responseId: string): string {
  return `ca_${responseId.slice(responseId.indexOf("_") + 1)}`;
}
