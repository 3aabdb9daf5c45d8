import type { MiddlewareHandler } from "hono";

/**
 * What browsers are to enforce. The page shows prompts, tool results and answers, which anybody may have written: should one
 * ever reach it as markup, nothing in it runs, loads or is sent anywhere. Its own script and style are files of this edge;
 * `data:` is its icon.
 */
const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join("; ");

const HEADERS: Readonly<Record<string, string>> = {
  "content-security-policy": CONTENT_SECURITY_POLICY,
  // An answer that repeats what it was sent is not to be taken for a page.
  "x-content-type-options": "nosniff",
  // A rollout's id is in the page's address.
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
  // For browsers that do not know frame-ancestors.
  "x-frame-options": "DENY",
};

/** Middleware that puts them on every answer, errors and files of the page included. */
export const securityHeaders: MiddlewareHandler = async (c, next) => {
  await next();
  for (const [name, value] of Object.entries(HEADERS)) c.header(name, value);
};
