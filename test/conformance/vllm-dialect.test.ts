import { join } from "node:path";
import { afterAll } from "vitest";
import { startTestEndpoint, type TestEndpoint } from "../trainer/inference/endpoint.ts";
import { writeTinyAdapter, writeTinyModel } from "../trainer/inference/tiny-model.ts";
import { describeVllmDialect } from "./vllm-dialect.ts";

let endpoint: TestEndpoint | undefined;
afterAll(() => endpoint?.close());

describeVllmDialect("the built-in endpoint", async () => {
  endpoint = await startTestEndpoint(async (dir) => {
    await writeTinyModel(join(dir, "model"));
    await writeTinyAdapter(join(dir, "adapters", "one"), { name: "flight@1", modelDir: join(dir, "model") });
  });
  return {
    url: endpoint.url,
    base: "base",
    adapterPath: join(endpoint.dir, "adapters", "one"),
    adapterName: "flight@1",
  };
});

// A vLLM server that somebody started: VLLM_URL, and VLLM_ADAPTER as a folder that it can read.
const { VLLM_URL: url, VLLM_ADAPTER: adapterPath } = process.env;
if (url !== undefined && adapterPath !== undefined) {
  describeVllmDialect("a vLLM server", () =>
    Promise.resolve({ url, base: "base", adapterPath, adapterName: "conformance@1" }),
  );
}
