/** The service binding by which a host may lead directly to an inference server, by its place in INFERENCE_URL. */
export function inferenceBinding(server: number): string {
  return server === 0 ? "INFERENCE" : `INFERENCE_${server}`;
}
