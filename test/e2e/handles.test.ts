import { readFile } from "node:fs/promises";
import { createServer } from "node:net";
import { once } from "node:events";
import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { z } from "zod";
import { allEnded, newFolder, runCli, type Folder, type Started } from "../support/installation.ts";

/** What a user holds in the hand: the commands of a running installation, and what they say when something is wrong. */

describe("an installation that serves", () => {
  let folder: Folder;
  let started: Started;

  beforeAll(async () => {
    folder = await newFolder();
    started = folder.start(["--no-train"]);
    await started.line(/^serving: /);
  });
  afterAll(() => folder[Symbol.asyncDispose]());

  test("says where each part listens, without any control code off a terminal", () => {
    for (const [part, offset] of [
      ["edge", 0],
      ["inference", 1],
      ["store", 2],
    ] as const)
      expect(started.output()).toMatch(
        new RegExp(`^✓ ${part} +http://127\\.0\\.0\\.1:${folder.portBase + offset} `, "m"),
      );
    expect(started.output()).not.toContain("\u001B");
  });

  test("has an inference that answers its edge and its trainer, and nobody who asks past them", async () => {
    const response = await fetch(`http://127.0.0.1:${folder.portBase + 1}/v1/models`);
    expect([response.status, await response.json()]).toEqual([
      401,
      { error: expect.objectContaining({ code: "invalid_api_key" }) },
    ]);
  });

  test("gives a key with which the openai package talks to the trained policy, and the call can be looked at", async () => {
    const key = await runCli(["token", "--agent", "flight", "--mode", "live", "--state-dir", folder.path]);
    expect(key).toMatchObject({ code: 0, stderr: "" });
    expect(key.stdout).toMatch(/^[\w-]+\.[\w-]+\.[\w-]+\n$/);

    const client = new OpenAI({ apiKey: key.stdout.trim(), baseURL: `${started.edgeUrl}/v1` });
    const answer = await client.chat.completions.create({
      model: "any-name",
      messages: [{ role: "user", content: 'Get "Ana" from "Oslo" to "Rome".' }],
      max_tokens: 32,
    });
    expect(answer.model).toBe("any-name");
    expect(answer.usage?.completion_tokens).toBeGreaterThan(0);
    const pieces: string[] = [];
    const stream = await client.chat.completions.create({
      model: "any-name",
      messages: [{ role: "user", content: 'Get "Ana" from "Oslo" to "Rome".' }],
      max_tokens: 32,
      stream: true,
    });
    for await (const chunk of stream) pieces.push(chunk.choices[0]?.delta.content ?? "");
    expect(pieces.length).toBeGreaterThan(1);

    const listed = await runCli(["rollouts", "--json", "--state-dir", folder.path]);
    const [rollout] = z.array(z.object({ id: z.string(), mode: z.string() })).parse(JSON.parse(listed.stdout));
    expect(rollout?.mode).toBe("live");
    const shown = await runCli(["rollouts", "show", rollout?.id ?? "", "--json", "--state-dir", folder.path]);
    const { calls } = z
      .object({
        calls: z.array(
          z.object({
            version: z.string(),
            response_token_ids: z.array(z.int()),
            behaviour_logprobs: z.array(z.number().max(0)),
            prompt_token_ids: z.array(z.int()).min(1),
          }),
        ),
      })
      .parse(JSON.parse(shown.stdout));
    expect(calls.map(({ version }) => version)).toEqual(["flight@0", "flight@0"]);
    for (const call of calls) expect(call.behaviour_logprobs).toHaveLength(call.response_token_ids.length);

    const read = await runCli(["rollouts", "show", rollout?.id ?? "", "--state-dir", folder.path]);
    expect(read.stdout).toContain('user  Get "Ana" from "Oslo" to "Rome".');
    expect(read.stdout).toContain("2 calls");
  });

  test("refuses a second start on the same folder, and names the process", async () => {
    const second = await runCli(["start", "--no-train", "--state-dir", folder.path]);
    expect(second.code).toBe(1);
    expect(second.stderr).toContain(`in use by process ${started.child.pid}`);
  });

  test("keeps its keys to its user", async () => {
    const { stat } = await import("node:fs/promises");
    expect(((await stat(`${folder.path}/keys/edge.json`)).mode & 0o777).toString(8)).toBe("600");
    expect(await readFile(`${folder.path}/logs/edge.log`, "utf8")).not.toContain('"d":');
  });

  test("stops with code 0 at Ctrl-C and leaves no process", async () => {
    const processes = started.processes();
    expect(processes.length).toBeGreaterThanOrEqual(4); // store, inference, edge and its workerd
    started.child.kill("SIGINT");
    expect(await started.exit).toBe(0);
    await allEnded(processes);
  });
});

describe("a command that cannot work", () => {
  test("a taken port is one sentence with the port and the way round", async () => {
    await using folder = await newFolder();
    const holder = createServer().listen({ host: "127.0.0.1", port: folder.portBase + 1 });
    await once(holder, "listening");
    const started = folder.start(["--no-train"]);
    expect(await started.exit).toBe(1);
    expect(started.output()).toMatch(
      new RegExp(`^fulgur: port ${folder.portBase + 1}, where the inference listens, is taken[^\\n]*--port-base\\n$`),
    );
    holder.close();
  });

  test.each([
    { args: ["start", "--sed", "1"], says: "unknown option '--sed'" },
    { args: ["start", "--groups", "none"], says: "--groups" },
    { args: ["start", "--task", "chess"], says: "flight" },
    { args: ["start", "--port-base", "99999"], says: "from 1024 to 65533" },
    { args: ["token", "--ttl", "3h"], says: "at most 15m" },
    { args: ["token", "--mode", "train"], says: "--agent and --mode" },
    { args: ["rollouts", "--limit", "0"], says: "from 1 to 500" },
    { args: ["conquer"], says: "unknown command 'conquer'" },
  ])("a wrong command line ends with 2 and says what: $args", async ({ args, says }) => {
    const { code, stdout, stderr } = await runCli(args);
    expect({ code, stdout }).toEqual({ code: 2, stdout: "" });
    expect(stderr).toMatch(/^fulgur: /);
    expect(stderr).toContain(says);
  });

  test("a question to an installation that does not run says how to start it", async () => {
    await using folder = await newFolder();
    const { code, stderr } = await runCli(["rollouts", "--state-dir", folder.path]);
    expect(code).not.toBe(0);
    expect(stderr).toMatch(
      /^fulgur: (nothing listens on http:\/\/127\.0\.0\.1:8787; start it with npm start|there are no signing keys)/,
    );
  });
});
