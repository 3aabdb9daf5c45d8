import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";

/** Which file reads what somebody else wrote, and where that is tried: a new reader must be put down here. */

const FUZZ = "fuzz.test.ts";
const BODIES = "bodies.test.ts, on the running edge";
const OWN = "reads what this system itself wrote";

const READERS: Readonly<Record<string, string>> = {
  "edge/agents/flight/agent.ts": "the example agent; its arguments are the model's, and a wrong one ends its rollout",
  "edge/agents/wrapper.ts": "an agent's own Worker",
  "edge/config.ts": "the operator's variables",
  "edge/dispatch/invoke.ts": FUZZ,
  "edge/outbound-url.ts": `${FUZZ}, ssrf.test.ts`,
  "edge/proxy/admission.ts": OWN,
  "edge/proxy/answer.ts": FUZZ,
  "edge/proxy/chat/request.ts": FUZZ,
  "edge/proxy/chat/stream.ts": `test/edge/proxy; its events are inference's own`,
  "edge/proxy/messages/answer.ts": FUZZ,
  "edge/proxy/messages/reader.ts": FUZZ,
  "edge/proxy/messages/request.ts": FUZZ,
  "edge/proxy/parse-request.ts": FUZZ,
  "edge/proxy/provider/answer.ts": `${FUZZ}, by the readers of chats and completions`,
  "edge/proxy/provider/first-event.ts": "test/edge/proxy/provider; by the reader of events that is tried here",
  "edge/proxy/provider/provider.ts": "test/edge/proxy/provider; by the readers that are tried here",
  "edge/proxy/provider/request.ts": FUZZ,
  "edge/proxy/provider/responses.ts": FUZZ,
  "edge/proxy/responses/request.ts": FUZZ,
  "edge/proxy/sse.ts": FUZZ,
  "edge/proxy/stream.ts": "test/edge/proxy; by the reader of events that is tried here",
  "edge/proxy/translated/history.ts": OWN,
  "edge/proxy/translated/stream.ts": `test/edge/proxy; its events are inference's own, or a provider's chat (${FUZZ})`,
  "edge/proxy/upstream.ts": "ssrf.test.ts; of an error's body a message is read",
  "edge/proxy/whole-answer.ts": FUZZ,
  "edge/record/evaluators/answer.ts": FUZZ,
  "edge/record/evaluators/ask-model.ts": "test/edge/record; an answer that went through the proxy",
  "edge/record/evaluators/json-schema.ts": `${FUZZ}, judges.test.ts`,
  "edge/record/evaluators/numeric.ts": FUZZ,
  "edge/record/evaluators/remote.ts": "test/edge/record/evaluators; through the same schemas",
  "edge/record/evaluators/table.ts": FUZZ,
  "edge/record/evaluators/worker.ts": FUZZ,
  "edge/record/otlp/body.ts": `${FUZZ}, ${BODIES}`,
  "edge/record/otlp/export.ts": "a collector's answer, of which one number and one text are read",
  "edge/record/otlp/json.ts": FUZZ,
  "edge/record/otlp/protobuf.ts": FUZZ,
  "edge/record/outbox.ts": OWN,
  "edge/record/pattern.ts": FUZZ,
  "edge/record/redact.ts": FUZZ,
  "edge/record/success.ts": FUZZ,
  "edge/record/terminal.ts": FUZZ,
  "edge/routes/agl/endpoint.ts": "ssrf.test.ts",
  "edge/routes/agl/parse.ts": FUZZ,
  "edge/routes/agl/proxied.ts": BODIES,
  "edge/routes/agl/wire.ts": FUZZ,
  "edge/routes/json-body.ts": FUZZ,
  "edge/routes/session.ts": "paths.test.ts",
  "edge/routes/tokens.ts": FUZZ,
  "shared/client.ts": "a client; it reads this edge's answers",
  "shared/inference-client.ts": "test/shared; the operator's inference servers' answers",
  "shared/store/base64.ts": OWN,
  "shared/store/encoded.ts": OWN,
  "shared/store/pipeline.ts": OWN,
  "shared/store/reward-revisions.ts": OWN,
  "shared/store/rollouts.ts": OWN,
  "shared/tokens.ts": `${FUZZ}, tokens.test.ts, wycheproof.test.ts`,
  "shared/url-list.ts": "the operator's variables",
  "shared/wire-access.ts": FUZZ,
  "shared/wire-feedback.ts": FUZZ,
};

/** What reading looks like. */
const READING =
  /JSON\.parse\(|\.safeParse\(|[sS]chema\.parse\(|new RegExp\(|new URL\(|BinaryReader\(|fromBinary\(|atob\(|decodeURIComponent\(|DecompressionStream\(|compilePattern\(|parseObject\(|eventReader\(/;

test("every file that reads what others write is tried somewhere", async () => {
  const root = join(import.meta.dirname, "../..");
  const files = (
    await Promise.all(
      ["edge", "shared"].map(async (folder) =>
        (await readdir(join(root, folder), { recursive: true }))
          .filter((file) => file.endsWith(".ts") && !file.startsWith("dashboard"))
          .map((file) => join(folder, file)),
      ),
    )
  ).flat();
  const readers: string[] = [];
  for (const file of files) if (READING.test(await readFile(join(root, file), "utf8"))) readers.push(file);
  expect(readers.toSorted()).toEqual(Object.keys(READERS).toSorted());
});
