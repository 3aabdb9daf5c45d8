/** An evaluator of somebody's own: half a point for each word that is expected, and form 1 where there was a call. */
export default {
  async fetch(request: Request): Promise<Response> {
    const { result, expected, calls } = (await request.json()) as Record<string, unknown>;
    const wanted: readonly unknown[] = Array.isArray(expected) ? expected : [];
    const found = wanted.filter((word) => String(result).includes(String(word)));
    const form = Array.isArray(calls) && calls.length > 0 ? 1 : 0;
    return Response.json({ score: found.length / 2, format: form });
  },
};
