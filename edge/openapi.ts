import { z } from "zod";
import { ROUTES, type RouteSpec } from "#shared/routes.ts";
import { errorBodySchema } from "#shared/wire.ts";

/** The OpenAPI 3.1 document of {@link ROUTES}: JSON Schema straight from the zod schemas that the routes parse with. */
export function openApiDocument(serverUrl: string): object {
  const paths: Record<string, Record<string, object>> = {};
  for (const route of ROUTES) {
    const path = route.path.replaceAll(/:(\w+)(\{[^}]*\})?/g, "{$1}");
    (paths[path] ??= {})[route.method.toLowerCase()] = operation(route);
  }
  return {
    openapi: "3.1.0",
    info: { title: "Fulgur edge", version: "1" },
    servers: [{ url: serverUrl }],
    security: [{ bearer: [] }],
    paths,
    components: {
      securitySchemes: {
        bearer: { type: "http", scheme: "bearer", description: "a rollout's token, a scoped token, or a key (fk_…)" },
      },
      responses: {
        Error: { description: "what was wanted, what came, what to do", content: json(errorBodySchema, "output") },
      },
    },
  };
}

function operation(route: RouteSpec): object {
  const { scopes, summary, tag, query, body, answer, path } = route;
  const parameters = [
    ...[...path.matchAll(/:(\w+)/g)].map(([, name]) => ({
      name,
      in: "path",
      required: true,
      schema: { type: "string" },
    })),
    ...queryParameters(query),
  ];
  return {
    summary,
    tags: [tag],
    "x-scopes": scopes,
    ...(scopes.includes("–") ? { security: [] } : {}),
    ...(parameters.length === 0 ? {} : { parameters }),
    ...(body === undefined ? {} : { requestBody: { required: true, content: json(body, "input") } }),
    responses: {
      "200": { description: "done", ...(answer === undefined ? {} : { content: json(answer, "output") }) },
      default: { $ref: "#/components/responses/Error" },
    },
  };
}

function queryParameters(query: z.ZodType | undefined): object[] {
  if (!(query instanceof z.ZodObject)) return [];
  return Object.entries(query.shape).map(([name, schema]) => ({
    name,
    in: "query",
    required: false,
    schema: wireSchema(schema, "input"),
  }));
}

function json(schema: z.ZodType, direction: Direction): object {
  return { "application/json": { schema: wireSchema(schema, direction) } };
}

/** Whether a schema is of what we take, where a field with a default may be missing, or of what we give. */
type Direction = "input" | "output";

/**
 * A schema as it is on the wire. Those of wire.ts parse snake_case JSON into camelCase objects: JSON Schema is made of
 * what comes out, its names turned back.
 */
function wireSchema(schema: z.ZodType, direction: Direction): object {
  const { $schema: _draft, ...made } = z.toJSONSchema(schema, {
    io: hasTransform(schema) ? "input" : "output",
    unrepresentable: "any",
    override: ({ zodSchema, jsonSchema }) => {
      const { properties } = jsonSchema;
      if (properties === undefined) return;
      jsonSchema.properties = Object.fromEntries(
        Object.entries(properties).map(([name, property]) => [snake(name), property]),
      );
      const object = zodSchema instanceof z.ZodPipe ? zodSchema.out : zodSchema;
      if (!(object instanceof z.ZodObject)) return;
      const shape: Record<string, z.ZodType> = object.shape;
      jsonSchema.required = Object.entries(shape)
        .filter(([, field]) => direction === "output" || field._zod.optin === undefined)
        .filter(([, field]) => field._zod.optout === undefined)
        .map(([name]) => snake(name));
    },
  });
  return made;
}

/** A schema that ends in a function has no JSON Schema of what comes out. */
function hasTransform(schema: z.ZodType): boolean {
  return schema instanceof z.ZodPipe && schema.out instanceof z.ZodTransform;
}

function snake(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
