import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import OpenAI from "openai";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { newId } from "#shared/ids.ts";
import { launchBrowser } from "../support/browser.ts";
import { SHA256, startTestEdge, type TestEdge } from "../support/edge.ts";

const estimate = (mean: number) => ({ mean, low: mean - 0.05, high: mean + 0.05 });
const evaluation = (version: string, reward: number, firstTool: number) => ({
  version,
  reward: estimate(reward),
  first_tool: estimate(firstTool),
  correct: estimate(reward),
  n: 512,
  failed: 0,
  wall_s: 10,
});

describe("the page", () => {
  let edge: TestEdge;
  let browser: Browser;
  let page: Page;
  const problems: string[] = [];
  let rolloutId: string;

  beforeAll(async () => {
    edge = await startTestEdge();
    browser = await launchBrowser();
    page = await browser.newPage({ viewport: { width: 1200, height: 900 } });
    page.on("pageerror", (error) => problems.push(error.message));
    page.on("console", (message) => {
      if (message.type() === "error") problems.push(message.text());
    });
    rolloutId = await recordOneRollout(edge);
  }, 120_000);

  afterAll(async () => {
    await browser?.close();
    await edge?.stop();
  });

  test("says what is going on before anything was trained, then draws the run's curves", async () => {
    await page.goto(edge.url);
    await page.getByText("Nothing is training").waitFor();

    await recordTrainedRun(edge);
    await page.getByRole("heading", { name: "Training flight" }).waitFor();
    await page.getByText("flight@2").waitFor();
    expect(await page.getByText("0.30 → 0.90").count()).toBe(1);
    expect(await page.getByText("31% → 95%").count()).toBe(1);
    expect(await page.locator(".chart canvas").count()).toBeGreaterThanOrEqual(2);
    expect(await inkOn(page, ".chart canvas")).toBeGreaterThan(100);
  });

  test("opens one rollout as its calls, with prompts, tool results, rewards and per-token logprobs", async () => {
    await page.goto(`${edge.url}/#/`);
    await page.getByRole("link", { name: rolloutId.slice(-10) }).click();
    await page.getByRole("heading", { name: `Rollout ${rolloutId}` }).waitFor();
    expect(await page.locator(".call").count()).toBe(2);
    expect(await page.locator(".message.user pre").allInnerTexts()).toEqual(["Where does Ana like to sit?"]);
    expect(await page.locator(".message.tool pre").allInnerTexts()).toEqual(['{"seat":"window"}']);
    const tokens = page.locator(".call").nth(1).locator(".tokens span");
    expect(await tokens.allInnerTexts()).toEqual(["By", " the", " window."]);
    expect(await tokens.first().getAttribute("title")).toMatch(/^token \d+, logprob -\d\.\d{3}, probability 0\.\d{3}$/);
    expect(await page.locator(".rewards li.good").allInnerTexts()).toContain("air · memory +0.30");
    expect(problems).toEqual([]);
  });

  test("can be read by everybody: axe finds nothing", async () => {
    const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
    for (const hash of ["#/", `#/rollouts/${rolloutId}`]) {
      await page.goto(`${edge.url}/${hash}`);
      await page.locator("main section").first().waitFor();
      await page.locator("main h1").waitFor();
      // Not as a script of the page, which its content policy would refuse.
      await page.evaluate(axe);
      const found = await page.evaluate(
        `axe.run().then(({ violations }) => violations.map(({ id, nodes }) => id + ": " + nodes.map(({ html }) => html).join(" ")))`,
      );
      expect(found).toEqual([]);
    }
  });
});

/** How many pixels of a canvas are not blank. */
async function inkOn(page: Page, selector: string): Promise<number> {
  const counted: unknown = await page.evaluate(
    `(() => {
      const canvas = document.querySelector(${JSON.stringify(selector)});
      const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      let inked = 0;
      for (let index = 3; index < pixels.length; index += 4) if (pixels[index] > 0) inked++;
      return inked;
    })()`,
  );
  return Number(counted);
}

/** An agent's run through the real proxy: a memory call, its result, an answer. */
async function recordOneRollout(edge: TestEdge): Promise<string> {
  const { id, token } = await edge.rollout("live");
  const openai = new OpenAI({ baseURL: `${edge.url}/v1`, apiKey: token, maxRetries: 0 });
  const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: "user", content: "Where does Ana like to sit?" }];
  edge.inference.answer = () => ({
    tokens: ["<tool_call>", "…", "</tool_call>"],
    toolCalls: [{ id: "call_memory", name: "memory", arguments: '{"traveller":"Ana"}' }],
  });
  const asked = await openai.chat.completions.create({ model: "any-name", messages });
  const [choice] = asked.choices;
  const toolCall = choice?.message.tool_calls?.[0];
  if (choice === undefined || toolCall === undefined) throw new Error("the mock's tool call did not arrive");
  edge.inference.answer = () => ({ tokens: ["By", " the", " window."] });
  await openai.chat.completions.create({
    model: "any-name",
    messages: [...messages, choice.message, { role: "tool", tool_call_id: toolCall.id, content: '{"seat":"window"}' }],
  });
  await edge.admin.finishRollout(id, { result: "By the window.", reward: 1 });
  return id;
}

async function recordTrainedRun(edge: TestEdge): Promise<void> {
  const run = { id: newId("run"), policy: "flight", agent: "flight", config: { watchFirstTool: "memory" } };
  await edge.admin.putRun({
    ...run,
    evalBefore: evaluation("flight@0", 0.3, 0.31),
    evalAfter: evaluation("flight@2", 0.9, 0.95),
  });
  for (const step of [1, 2]) {
    const batchId = newId("batch");
    await edge.admin.claimBatch({ batchId, runId: run.id, policy: "flight", step: step - 1, groups: 1 });
    await edge.admin.markTrained(batchId, {
      version: step,
      parentVersion: step - 1,
      kind: "adapter",
      artifact: `policies/flight/${step}`,
      sha256: SHA256,
      metrics: { reward_mean: 0.3 * step, first_tool_rate: 0.4 * step, advantage_spread: 0.2, entropy: 0.5 },
    });
  }
}
