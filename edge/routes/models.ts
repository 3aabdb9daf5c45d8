import { Hono, type Context } from "hono";
import { parseModelTarget, type ModelTarget } from "#shared/agent-settings.ts";
import { FulgurError } from "#shared/errors.ts";
import { listPolicies } from "#shared/store/policies.ts";
import { versionName } from "#shared/words.ts";
import { tenantDirectory, type EdgeHono } from "../context.ts";
import { messagesErrorResponse } from "../proxy/messages/error.ts";

/**
 * `GET /v1/models` and `/v1/models/:id`: the names that the agent's map has, then each policy by its name and by the version
 * that answers now. Anthropic's clients, who name their API's version in a header, get the form that theirs has.
 */
export const modelRoutes = new Hono<EdgeHono>()
  .get("/", async (c) => {
    const models = await offered(c);
    return c.json(isAnthropic(c.req.raw) ? anthropicList(models) : { object: "list", data: models.map(openaiModel) });
  })
  .get("/:id{.+}", async (c) => {
    const id = c.req.param("id");
    const model = (await offered(c)).find((each) => each.id === id);
    if (model !== undefined) return c.json(isAnthropic(c.req.raw) ? anthropicModel(model) : openaiModel(model));
    const unknown = new FulgurError(
      "ERR_UNKNOWN_POLICY",
      `there is no model ${id}; GET /v1/models lists those there are`,
    );
    if (isAnthropic(c.req.raw)) return messagesErrorResponse(unknown);
    throw unknown;
  });

/** A model that an agent may ask for. */
interface Model {
  readonly id: string;
  /** Milliseconds since the epoch. */
  readonly createdAt: number;
}

async function offered(c: Context<EdgeHono>): Promise<Model[]> {
  const { principal, db } = c.var;
  const [policies, { agents, providers }] = await Promise.all([
    listPolicies(db(), principal.tenantId),
    tenantDirectory(c),
  ]);
  const createdAt = (target: ModelTarget): number =>
    (target.kind === "policy"
      ? policies.find(({ name }) => name === target.policy)?.createdAt
      : providers.get(target.provider)?.updatedAt) ?? 0;
  const agent = principal.rollout?.agent ?? principal.keyAgent;
  const maps = Object.entries(agents)
    .filter(([name]) => agent === undefined || name === agent)
    .flatMap(([, { models }]) => Object.entries(models))
    .filter(([id]) => id !== "*");
  const models = [
    ...maps.map(([id, target]) => ({ id, createdAt: createdAt(parseModelTarget(target)) })),
    ...policies.flatMap((policy) =>
      [policy.name, versionName(policy.name, policy.routeVersion)].map((id) => ({ id, createdAt: policy.createdAt })),
    ),
  ];
  return [...new Map(models.toReversed().map((model) => [model.id, model])).values()].toReversed();
}

function isAnthropic(request: Request): boolean {
  return request.headers.has("anthropic-version");
}

function openaiModel({ id, createdAt }: Model): Record<string, unknown> {
  return { id, object: "model", created: Math.floor(createdAt / 1000), owned_by: "fulgur" };
}

function anthropicModel({ id, createdAt }: Model): Record<string, unknown> {
  return { type: "model", id, display_name: id, created_at: new Date(createdAt).toISOString() };
}

/** One page: there are few models. */
function anthropicList(models: readonly Model[]): Record<string, unknown> {
  return {
    data: models.map(anthropicModel),
    has_more: false,
    first_id: models[0]?.id ?? null,
    last_id: models.at(-1)?.id ?? null,
  };
}
