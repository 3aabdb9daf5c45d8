import { createServer } from "node:http";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { z } from "zod";

/**
 * An agent at an address whose runs can be had again: it calls its model once, with a seed that is made of the rollout's
 * place in its run, so that the same weights give the same answer in every run whatever that is called. Whether the answer
 * is a good one is decided by the sum of its bytes; where the task says so, all answers are good ones.
 */
export interface SeededAgent {
  /** For the agent's settings. */
  readonly url: string;
  /** What its tasks are judged by. */
  readonly judge: { readonly expected: string; readonly answer_pattern: string; readonly format_pattern: string };
  stop(): Promise<void>;
}

/** The input of its tasks. */
export interface SeededInput {
  readonly message: string;
  /** Every answer is right, so that a group of it has no spread. */
  readonly always: boolean;
}

const inputSchema = z.object({ input: z.object({ message: z.string(), always: z.boolean() }) });
const claimsSchema = z.object({ rollout: z.object({ id: z.string() }) });
const answerSchema = z.object({
  choices: z.array(z.object({ message: z.object({ content: z.string().nullable() }) })),
});

export async function startSeededAgent(): Promise<SeededAgent> {
  const server = createServer((request, response) => {
    void (async () => {
      const pieces: Buffer[] = [];
      for await (const piece of request) pieces.push(piece as Buffer);
      const { input } = inputSchema.parse(JSON.parse(Buffer.concat(pieces).toString("utf8")));
      const key = request.headers.authorization?.replace("Bearer ", "") ?? "";
      const result = await run(input, key, String(request.headers["x-llm-base-url"]));
      response.setHeader("content-type", "application/json").end(JSON.stringify({ result }));
    })().catch((error: unknown) => {
      response.statusCode = 502;
      response.end(JSON.stringify({ error: { message: String(error), reason: "upstream_failed" } }));
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/run`,
    judge: { expected: "yes", answer_pattern: "^(yes|no)$", format_pattern: "yes|no" },
    stop: () => new Promise((resolve) => server.close(() => resolve())),
  };
}

async function run({ message, always }: SeededInput, key: string, baseUrl: string): Promise<"yes" | "no"> {
  const claims = claimsSchema.parse(JSON.parse(Buffer.from(key.split(".")[1] ?? "", "base64url").toString("utf8")));
  const response = await fetch(`${baseUrl}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${key}` },
    body: JSON.stringify({
      model: "any",
      messages: [{ role: "user", content: message }],
      seed: seedOf(claims.rollout.id),
      max_tokens: 12,
    }),
  });
  if (!response.ok) throw new Error(`the edge answered ${response.status}: ${await response.text()}`);
  const [choice] = answerSchema.parse(await response.json()).choices;
  const sum = Buffer.from(choice?.message.content ?? "").reduce((total, byte) => total + byte, 0);
  return always || sum % 2 === 0 ? "yes" : "no";
}

/** Of `ro_<run>_<group>_<step>_<member>`, all but the run. */
function seedOf(rolloutId: string): number {
  const place = /_(\d+)_(\d+)_(\d+)$/.exec(rolloutId);
  if (place === null) throw new Error(`${rolloutId} is no rollout of a trainer's run`);
  const [, group, step, member] = place;
  return (Number(group) * 64 + Number(step)) * 1024 + Number(member);
}
