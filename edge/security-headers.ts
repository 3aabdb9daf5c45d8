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

const HEADERS: readonly (readonly [string, string])[] = [
  ["content-security-policy", CONTENT_SECURITY_POLICY],
  // An answer that repeats what it was sent is not to be taken for a page.
  ["x-content-type-options", "nosniff"],
  // A rollout's id is in the page's address.
  ["referrer-policy", "no-referrer"],
  ["cross-origin-opener-policy", "same-origin"],
  ["cross-origin-resource-policy", "same-origin"],
  // For browsers that do not know frame-ancestors.
  ["x-frame-options", "DENY"],
];

/** The answer with these headers, whatever made it: errors and files of the page included. */
export function withSecurityHeaders(response: Response): Response {
  // A file's headers cannot be changed, and a body is handed on without being read.
  const answer = new Response(response.body, response);
  for (const [name, value] of HEADERS) answer.headers.set(name, value);
  return answer;
}

/**
 * The least of them, for LLM calls, whose answers are for programs: a page cannot even ask without a token, so the rest
 * would cost each call its time for nothing.
 */
export function withoutSniffing(response: Response): Response {
  response.headers.set("x-content-type-options", "nosniff");
  return response;
}
