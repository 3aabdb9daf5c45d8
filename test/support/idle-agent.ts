/** An agent that is never to be run: for tests of the edge without dispatch. */
export default {
  fetch: (): Response => new Response("this agent does nothing", { status: 501 }),
};
