import { Hono } from "hono";
import { html, raw } from "hono/html";
import { ROUTES, type RouteSpec, type RouteTag } from "#shared/routes.ts";
import type { EdgeHono } from "../context.ts";
import { openApiDocument } from "../openapi.ts";

const TITLES: Readonly<Record<RouteTag, string>> = {
  llm: "LLM calls",
  rollouts: "Tasks and rollouts",
  rewards: "Rewards and feedback",
  training: "Policies, batches, runs",
  access: "Keys, providers, agents, audit",
  metering: "Usage and prices",
  telemetry: "OpenTelemetry",
  "agent-lightning": "Agent Lightning 1.0",
  edge: "The edge itself",
};

/** `/openapi.json` and its page: no script, so that it shows under the strictest content policy. */
export const docsRoutes = new Hono<EdgeHono>()
  .get("/openapi.json", (c) => c.json(openApiDocument(c.var.edge.config.publicUrl)))
  .get("/docs", (c) =>
    c.html(
      html`<!doctype html>
        <html lang="en">
          <head>
            <meta charset="utf-8" />
            <meta name="viewport" content="width=device-width, initial-scale=1" />
            <title>Fulgur: the edge's interface</title>
            <link rel="stylesheet" href="/docs.css" />
          </head>
          <body>
            <main>
              <h1>The edge's interface</h1>
              <p>
                <code>${c.var.edge.config.publicUrl}</code> · every route but the open ones takes
                <code>Authorization: Bearer</code> with a token or a key · machine-readable:
                <a href="/openapi.json">openapi.json</a>
              </p>
              ${sections(openApiDocument(c.var.edge.config.publicUrl))}
            </main>
          </body>
        </html>`,
    ),
  )
  .get("/docs.css", (c) => c.body(STYLE, 200, { "content-type": "text/css; charset=utf-8" }));

function sections(document: object) {
  return Object.entries(TITLES).map(
    ([tag, title]) =>
      html`<h2>${title}</h2>
        ${ROUTES.filter((route) => route.tag === tag).map((route) => section(route, document))}`,
  );
}

function section(route: RouteSpec, document: object) {
  const { method, path, scopes, summary } = route;
  const operation = operationOf(document, route);
  const schemas = [
    ["takes", schemaAt(operation, ["requestBody"])],
    ["gives", schemaAt(operation, ["responses", "200"])],
  ] as const;
  return html`<details>
    <summary><b>${method}</b> <code>${path}</code> <span>${summary}</span> <i>${scopes.join(", ")}</i></summary>
    ${schemas.map(([title, schema]) =>
      schema === undefined
        ? raw("")
        : html`<h3>${title}</h3>
            <pre>${JSON.stringify(schema, null, 2)}</pre>`,
    )}
  </details>`;
}

function operationOf(document: object, { path, method }: RouteSpec): unknown {
  return at(document, ["paths", path.replaceAll(/:(\w+)(\{[^}]*\})?/g, "{$1}"), method.toLowerCase()]);
}

function schemaAt(operation: unknown, path: readonly string[]): unknown {
  return at(operation, [...path, "content", "application/json", "schema"]);
}

function at(value: unknown, path: readonly string[]): unknown {
  return path.reduce<unknown>(
    (inner, key) => (typeof inner === "object" && inner !== null ? Reflect.get(inner, key) : undefined),
    value,
  );
}

const STYLE = `
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2rem 0 0.5rem; font-size: 1.1rem; }
h3 { margin: 0.5rem 0 0; font-size: 0.9rem; }
summary { cursor: pointer; padding: 0.2rem 0; }
summary b { display: inline-block; width: 4.5rem; font-size: 0.8rem; }
summary span { margin-left: 0.75rem; }
summary i { margin-left: 0.75rem; font-size: 0.85rem; }
pre { overflow-x: auto; padding: 0.75rem; border: 1px solid color-mix(in srgb, currentColor 20%, transparent); font-size: 0.8rem; }
`;
