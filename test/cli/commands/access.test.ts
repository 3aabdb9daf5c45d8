import { mkdtemp, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { registerVersion } from "#shared/store/policies.ts";
import { listProviders } from "#shared/store/providers.ts";
import { createRollouts } from "#shared/store/rollouts.ts";
import { transact } from "#shared/store/statement.ts";
import { startTestEdge, type TestEdge } from "../../support/edge.ts";
import { runCli } from "../../support/installation.ts";

/** keys, providers, agents, audit and token, as a user types them, against a running edge. */

let edge: TestEdge;
let folder: string;

beforeAll(async () => {
  edge = await startTestEdge();
  folder = await mkdtemp(join(tmpdir(), "fulgur-access-"));
  await mkdir(join(folder, "keys"));
  await writeFile(join(folder, "keys/edge.json"), JSON.stringify(edge.keys));
  await writeFile(
    join(folder, "running.json"),
    JSON.stringify({ pid: process.pid, edge_url: edge.url, started_at: Date.now() }),
  );
});
afterAll(async () => {
  await edge.stop();
  await rm(folder, { recursive: true, force: true });
});

const fulgur = (...args: readonly string[]) => runCli([...args, "--state-dir", folder]);
const json = async (...args: readonly string[]): Promise<unknown> => {
  const { code, stdout, stderr } = await fulgur(...args, "--json");
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  return JSON.parse(stdout);
};

describe("fulgur rollouts", () => {
  it("shows what has begun before what only waits, each newest first, and as many as were asked for", async () => {
    const { id: first } = await edge.rollout("live");
    const { id: second } = await edge.rollout("live");
    // Of an agent that nobody runs, so that they go on waiting.
    const waiting = ["ro_waits_1", "ro_waits_2"];
    await edge.store.writer.transact(
      createRollouts(
        waiting.map((id) => ({ id, tenantId: "default", agent: "nobody", mode: "train" as const, maxAttempts: 1 })),
        Date.now() + 60_000,
      ),
    );
    const listed = async (...args: readonly string[]) =>
      [...(await fulgur("rollouts", ...args)).stdout.matchAll(/^(ro_\S+)/gm)].map(([, id]) => id);
    expect(await listed()).toEqual([second, first, "ro_waits_2", "ro_waits_1"]);
    expect(await listed("--limit", "3")).toEqual([second, first, "ro_waits_2"]);
    expect(await listed("--limit", "1")).toEqual([second]);
    expect(await listed("--status", "queued")).toEqual(["ro_waits_2", "ro_waits_1"]);
    expect(await json("rollouts")).toMatchObject([{ id: "ro_waits_2" }, { id: "ro_waits_1" }, { id: second }, {}]);
  });
});

describe("fulgur policies", () => {
  it("lists versions, which one answers and which are retired", async () => {
    const version = { tenantId: "default", policy: "flight", kind: "adapter", artifact: "x", createdAt: 1000 } as const;
    for (const number of [1, 2, 3]) {
      const made = { ...version, version: number, parentVersion: number - 1, runId: "r1", step: number - 1 };
      await transact(edge.store.writer, registerVersion({ ...made, sha256: String(number).repeat(64) }));
    }
    await edge.admin.routePolicy("flight", 1);
    expect(await edge.admin.retireVersions("flight", [1, 2])).toEqual([2]);
    const { code, stdout } = await fulgur("policies", "--limit", "2");
    expect(code).toBe(0);
    expect(stdout.split("\n").map((line) => line.trim().replaceAll(/ {2,}/g, "|"))).toEqual([
      "VERSION|STATE|KIND|FROM|RUN|STEP|MADE (UTC)",
      "flight@3|adapter|flight@2|r1|3|1970-01-01 00:00",
      expect.stringMatching(/^flight@2\|retired \d{4}-\d\d-\d\d \d\d:\d\d\|adapter\|flight@1\|r1\|2\|/),
      "flight@1|routed|adapter|flight@0|r1|1|1970-01-01 00:00",
      "",
    ]);
    expect(await json("policies")).toMatchObject([
      {
        name: "flight",
        route_version: 1,
        versions: [{ version: 3 }, { version: 2, retired_at: expect.any(Number) }, { version: 1 }, { version: 0 }],
      },
    ]);
    await edge.admin.routePolicy("flight", 0);
  });
});

describe("fulgur keys", () => {
  it("creates one and prints it alone, lists it without the key, and revokes it", async () => {
    const made = await fulgur("keys", "create", "--scope", "agent", "--agent", "flight", "--rate", "60", "--quiet");
    expect(made).toMatchObject({ code: 0, stderr: "" });
    const id = /^fk_([0-9a-f]{16})_[\w-]{43}\n$/.exec(made.stdout)?.[1] ?? "";
    const listed = await json("keys", "list");
    expect(listed).toMatchObject([{ id, scope: "agent", agent: "flight", rate_per_minute: 60, revoked_at: null }]);
    expect(JSON.stringify(listed)).not.toContain(made.stdout.slice(20).trim());
    expect(await fulgur("keys", "revoke", id)).toMatchObject({ code: 0, stdout: `key ${id} is revoked\n` });
    expect(await json("keys", "list")).toMatchObject([{ id, revoked_at: expect.any(Number) }]);
    expect((await fulgur("keys", "list")).stdout).toMatch(new RegExp(`^${id} +agent +flight +60/min`, "m"));
    expect(await fulgur("keys", "revoke", "0000000000000000")).toMatchObject({
      code: 1,
      stderr: expect.stringContaining("there is no key 0000000000000000"),
    });
  });

  it("says what a key is for beside it, and which scopes there are", async () => {
    const made = await fulgur("keys", "create", "--scope", "read");
    expect(made.stdout).toMatch(/^fk_\S+\n$/);
    expect(made.stderr).toContain("shown once");
    expect(await fulgur("keys", "create", "--scope", "root")).toMatchObject({
      code: 2,
      stderr: expect.stringContaining("admin, agent, trainer, read"),
    });
  });
});

describe("fulgur providers and agents", () => {
  it("add an upstream with a key from a variable and map models to it", async () => {
    process.env["FULGUR_TEST_KEY"] = "sk-from-the-shell";
    try {
      const added = await fulgur(
        "providers",
        "add",
        "mock",
        "--base-url",
        "http://127.0.0.1:9/v1",
        "--key-env",
        "FULGUR_TEST_KEY",
      );
      expect(added).toMatchObject({ code: 0, stdout: expect.stringContaining("sealed in the store") });
      expect(added.stdout).not.toContain("sk-from-the-shell");
    } finally {
      delete process.env["FULGUR_TEST_KEY"];
    }
    const [kept] = await listProviders(edge.store.db, "default");
    expect(kept).toMatchObject({ name: "mock", keyEnv: "FULGUR_TEST_KEY", keySealed: expect.stringMatching(/^v1\./) });
    expect(await json("providers", "list")).toMatchObject([{ name: "mock", key: "sealed" }]);

    const mapped = await fulgur("agents", "map", "support", "gpt-5=provider:mock/gpt-5=x", "*=policy:flight");
    expect(mapped).toMatchObject({ code: 0, stderr: "" });
    expect(await json("agents", "list")).toMatchObject([
      { name: "flight", source: "deployed" },
      { name: "support", settings: { models: { "gpt-5": "provider:mock/gpt-5=x", "*": "policy:flight" } } },
    ]);
    expect((await fulgur("agents", "show", "support")).stdout).toContain('"*": "policy:flight"');

    const token = await fulgur("token", "--agent", "support", "--mode", "live");
    expect(token.stdout).toMatch(/^[\w-]+\.[\w-]+\.[\w-]+\n$/);

    expect(await fulgur("providers", "remove", "mock")).toMatchObject({
      code: 1,
      stderr: expect.stringContaining("support"),
    });
    expect(await fulgur("agents", "remove", "support")).toMatchObject({ code: 0 });
    expect(await fulgur("providers", "remove", "mock")).toMatchObject({
      code: 0,
      stdout: "provider mock is removed\n",
    });
  });

  it("need no key where the upstream needs none, and say so where one is nowhere to be had", async () => {
    const base = ["--base-url", "http://127.0.0.1:9"];
    expect(await fulgur("providers", "add", "open", ...base)).toMatchObject({
      code: 0,
      stdout: expect.stringContaining("without a key"),
    });
    expect(await fulgur("providers", "add", "lost", ...base, "--key-env", "NO_SUCH_VARIABLE")).toMatchObject({
      code: 2,
      stderr: expect.stringContaining("NO_SUCH_VARIABLE"),
    });
    expect(await fulgur("providers", "add", "far", "--base-url", "http://api.example.com")).toMatchObject({
      code: 2,
      stderr: expect.stringContaining("https"),
    });
  });

  it.each(["flight", "x=flight", "x=policy:", "=policy:flight", "x=provider:mock"])(
    "refuse the mapping %s",
    async (mapping) => {
      expect(await fulgur("agents", "map", "a", mapping)).toMatchObject({
        code: 2,
        stderr: expect.stringContaining("MODEL=policy:NAME"),
      });
    },
  );
});

describe("fulgur agents set", () => {
  it("takes settings as JSON or from a file, and says which field is wrong", async () => {
    const settings = { url: "http://127.0.0.1:9/run", policy: "flight", tools: { search: 0.5 } };
    expect(await fulgur("agents", "set", "afar", JSON.stringify(settings))).toMatchObject({ code: 0 });
    const file = join(folder, "settings.json");
    await writeFile(file, JSON.stringify({ ...settings, concurrency: 3 }));
    expect(await fulgur("agents", "set", "afar", file)).toMatchObject({ code: 0 });
    const shown: unknown = JSON.parse((await fulgur("agents", "show", "afar")).stdout);
    expect(shown).toMatchObject({ settings: { url: settings.url, concurrency: 3, models: { "*": "policy:flight" } } });
    for (const [text, says] of [
      ['{"alpha": 7}', "alpha"],
      ["{", "neither JSON nor a file"],
      ["/nowhere.json", "neither JSON nor a file"],
    ] as const) {
      expect(await fulgur("agents", "set", "afar", text)).toMatchObject({
        code: 2,
        stderr: expect.stringContaining(says),
      });
    }
  });
});

describe("fulgur audit", () => {
  it("shows what was done, by whom, to what", async () => {
    await fulgur("agents", "map", "audited", "*=policy:flight");
    const entries = z.array(z.looseObject({ action: z.string(), target: z.string() })).parse(await json("audit"));
    expect(entries[0]).toMatchObject({
      actor: expect.stringMatching(/^token:/),
      action: "agent.put",
      target: "audited",
      detail: { models: { "*": "policy:flight" } },
    });
    expect((await fulgur("audit", "--limit", "1")).stdout).toMatch(/agent\.put +audited/);
  });
});

describe("fulgur keys rotate-signing", () => {
  it("puts a new key first, while commands go on with one that the running edge knows", async () => {
    const rotated = await fulgur("keys", "rotate-signing");
    expect(rotated).toMatchObject({ code: 0, stdout: expect.stringContaining("at its next start") });
    const { keys } = z
      .object({ keys: z.array(z.looseObject({ kid: z.string(), retired_at: z.number().optional() })) })
      .parse(JSON.parse(await readFile(join(folder, "keys/edge.json"), "utf8")));
    expect(keys.map(({ kid }) => kid)).toEqual([expect.any(String), edge.keys.keys[0]?.kid]);
    expect(keys.map((key) => key.retired_at)).toEqual([undefined, expect.any(Number)]);
    expect(await fulgur("keys", "list")).toMatchObject({ code: 0 });
  });
});

describe("without a running edge", () => {
  it("they say so in one sentence", async () => {
    const empty = await mkdtemp(join(tmpdir(), "fulgur-none-"));
    try {
      const { code, stderr } = await runCli(["agents", "list", "--state-dir", empty]);
      expect(code).not.toBe(0);
      expect(stderr).toMatch(/^fulgur: (nothing listens on|there are no signing keys)[^\n]*\n$/);
    } finally {
      await rm(empty, { recursive: true });
    }
  });
});
