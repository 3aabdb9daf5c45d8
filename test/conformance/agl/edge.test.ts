import { afterAll } from "vitest";
import { startTestEdge, type TestEdge } from "../../support/edge.ts";
import { describeAglProxied } from "./proxied.ts";
import { describeAglRest } from "./rest.ts";

let edge: TestEdge | undefined;
const start = async () => {
  edge ??= await startTestEdge();
  return {
    url: edge.url,
    key: await edge.mint({ scopes: ["trainer"] }),
    model: "served-model",
    pausedStatus: 503 as const,
  };
};
describeAglRest("the edge", start);
describeAglProxied("the edge", start);
afterAll(() => edge?.stop());
