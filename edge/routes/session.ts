import { Hono } from "hono";
import { FulgurError } from "#shared/errors.ts";
import type { EdgeHono } from "../context.ts";
import { grant } from "./tokens.ts";

const LOOPBACK = new Set(["127.0.0.1", "localhost", "[::1]"]);

/**
 * `GET /v1/session`: a `read` token for the page, without any key. Only where the edge is configured for one machine,
 * only under a loopback name (a foreign name that resolves here is a rebinding attack), and not for other sites' pages.
 */
export const sessionRoutes = new Hono<EdgeHono>().get("/", async (c) => {
  const { edge } = c.var;
  const { hostname } = new URL(c.req.url);
  const site = c.req.header("sec-fetch-site") ?? "none";
  if (!edge.config.localSession || !LOOPBACK.has(hostname)) {
    throw new FulgurError("ERR_NOT_FOUND", "there is no session here; ask for a token instead (POST /v1/tokens)");
  }
  if (site !== "same-origin" && site !== "none") {
    throw new FulgurError("ERR_FORBIDDEN", "a session is for the page that this edge serves, not for other sites");
  }
  const { token, expires_at } = await grant(edge.config.signingKeys, {
    tenantId: "default",
    scopes: ["read"],
    now: edge.now(),
  });
  return c.json({ token, expires_at }, 200, { "cache-control": "no-store" });
});
