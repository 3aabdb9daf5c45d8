import { readFile, readdir } from "node:fs/promises";
import { describe, expect, it } from "vitest";
import { z } from "zod";
import { ROUTES } from "#shared/routes.ts";
import { openApiDocument } from "../../edge/openapi.ts";

const document = z
  .looseObject({ paths: z.record(z.string(), z.record(z.string(), z.looseObject({}))) })
  .parse(openApiDocument("http://127.0.0.1:8787"));

const schema = (path: string, method: string, ...keys: string[]): unknown =>
  [...keys, "content", "application/json", "schema"].reduce<unknown>(
    (value, key) => Reflect.get(Object(value), key),
    document.paths[path]?.[method],
  );

describe("the OpenAPI document", () => {
  it("has every route once, its path's names as parameters", () => {
    const operations = Object.values(document.paths).flatMap((methods) => Object.keys(methods));
    expect(operations).toHaveLength(ROUTES.length);
    expect(document.paths["/v1/rollouts/{id}"]?.["get"]).toMatchObject({
      parameters: [{ name: "id", in: "path", required: true }],
    });
  });

  it("names fields as they are on the wire, nested ones too, and asks only for those without a default", () => {
    expect(schema("/v1/rollouts", "post", "requestBody")).toMatchObject({
      type: "object",
      required: ["rollouts"],
      properties: {
        rollouts: {
          items: {
            required: ["id", "task_id", "agent", "mode"],
            properties: { max_attempts: { type: "integer", default: 3 }, group_id: {} },
          },
        },
      },
    });
    expect(schema("/v1/rollouts/{id}", "get", "responses", "200")).toMatchObject({
      properties: { calls: { items: { properties: { prompt_token_ids: {} } } } },
    });
  });

  it("describes settings that are transformed by what is written", () => {
    expect(schema("/v1/agents/{name}", "put", "requestBody")).toMatchObject({
      properties: { timeout_ms: { type: "integer" }, tools: {} },
    });
  });

  it("is JSON", () => {
    expect(JSON.parse(JSON.stringify(document))).toEqual(document);
    expect(JSON.stringify(document)).not.toContain("undefined");
  });
});

describe("the table of routes", () => {
  it("is what the routes' files have", async () => {
    const folder = new URL("../../edge/routes/", import.meta.url);
    const files = (await readdir(folder, { recursive: true })).filter((name) => name.endsWith(".ts"));
    let handlers = 0;
    for (const file of files) {
      const text = await readFile(new URL(file, folder), "utf8");
      handlers += text.match(/\.(get|post|put|patch|delete)\(\s*"\//g)?.length ?? 0;
    }
    // The dialects, health and the key set are matched in app.ts; the page's style is no interface.
    const elsewhere = ["/healthz", "/healthz/shards", "/healthz/inference", "/.well-known/jwks.json"];
    const inFiles = ROUTES.filter(
      ({ path, tag, method }) => !elsewhere.includes(path) && !(tag === "llm" && method === "POST"),
    );
    expect(handlers - 1).toBe(inFiles.length);
  });
});
