import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { launchBrowser } from "../support/browser.ts";
import { startTestEdge, type TestEdge } from "../support/edge.ts";

/** Markup and script that would say so if it ever ran: it sets a field of the window, and asks a server that listens. */
const PAYLOADS = (elsewhere: string): readonly string[] => [
  `<img src=x onerror="window.ran='img'">`,
  `<script>window.ran='script'</script>`,
  `"><script>window.ran='quote'</script>`,
  `</pre></code></textarea></title><svg onload="window.ran='svg'">`,
  `<iframe srcdoc="<script>parent.ran='iframe'</script>"></iframe>`,
  `<a href="javascript:window.ran='link'" autofocus onfocus="window.ran='focus'">click me</a>`,
  `[a link](javascript:window.ran='markdown')`,
  `![x](${elsewhere}/markdown.png)`,
  `<img src="${elsewhere}/image.png"><link rel=stylesheet href="${elsewhere}/style.css">`,
  `<style>*{background:url(${elsewhere}/css.png)}</style><base href="${elsewhere}/">`,
  `<form action="${elsewhere}/form"><button autofocus>go</button></form><meta http-equiv=refresh content="0;url=${elsewhere}/meta">`,
  `{{constructor.constructor('window.ran=1')()}} \${window.ran=1} <%= 1 %>`,
  `\u202E\u0000<ScRiPt x>window.ran='case'</sCrIpT >`,
];

describe("the page", () => {
  let edge: TestEdge;
  let browser: Browser;
  let page: Page;
  /** Where nothing must ever be sent. */
  let listener: Server;
  let elsewhere: string;
  const asked: string[] = [];
  const problems: string[] = [];
  let payloads: readonly string[];
  let rolloutId: string;

  beforeAll(async () => {
    listener = createServer((request, response) => {
      asked.push(request.url ?? "");
      response.end();
    });
    await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
    elsewhere = `http://127.0.0.1:${(listener.address() as AddressInfo).port}`;
    payloads = PAYLOADS(elsewhere);
    edge = await startTestEdge();
    rolloutId = await recordHostileRollout(edge, payloads);
    browser = await launchBrowser();
    page = await browser.newPage();
    page.on("pageerror", (error) => problems.push(error.message));
    page.on("console", (message) => {
      if (message.type() === "error") problems.push(message.text());
    });
    page.on("dialog", (dialog) => {
      problems.push(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
  }, 120_000);
  afterAll(async () => {
    await browser?.close();
    await edge?.stop();
    listener.close();
  });

  test("shows markup and script from prompts, answers, tools and rewards as text, and runs none of it", async () => {
    await page.goto(`${edge.url}/#/rollouts/${rolloutId}`);
    await page.getByRole("heading", { name: `Rollout ${rolloutId}` }).waitFor();
    const shown = await page.locator("main").evaluate((main) => main.textContent);
    // Every one of them is there, letter by letter.
    for (const payload of payloads) expect(shown).toContain(payload);
    expect(await page.locator(".message.user pre").first().textContent()).toBe(payloads.join("\n"));
    expect(
      await page.locator("main :is(script, img, iframe, svg, form, style, link, base, meta, object, embed)").count(),
    ).toBe(0);
    expect(await page.locator("a[href^='javascript:' i]").count()).toBe(0);

    await page.goto(`${edge.url}/#/`);
    await page.getByRole("link", { name: rolloutId.slice(-10) }).waitFor();
    for (const odd of [
      "<img src=x onerror=window.ran='hash'>",
      "javascript:window.ran='hash'",
      "__proto__",
      "..%2f..%2f",
    ]) {
      await page.goto(`${edge.url}/#/rollouts/${odd}`);
      // The overview, or that there is no such rollout.
      await page.locator("main :is(h1, .problem)").first().waitFor();
    }
    expect(await page.evaluate("window.ran")).toBeUndefined();
    expect(asked).toEqual([]);
    // A policy that its own page broke would show here; the odd rollouts are not found.
    expect(problems.filter((problem) => !problem.includes("404"))).toEqual([]);
  });

  test("would run and send nothing even if markup did get in", async () => {
    await page.goto(`${edge.url}/#/`);
    await page.getByRole("heading").first().waitFor();
    // No policy keeps a page from being left: a refresh is stopped only by never becoming markup, as above.
    for (const payload of payloads.map((each) => each.replace(/<meta[^>]*>/, ""))) {
      await page.evaluate(`document.body.insertAdjacentHTML("beforeend", ${JSON.stringify(payload)})`);
    }
    await page.evaluate(`{
      const script = document.createElement("script");
      script.textContent = "window.ran = 'inserted'";
      document.body.append(script);
      const remote = document.createElement("script");
      remote.src = ${JSON.stringify(`${elsewhere}/remote.js`)};
      document.body.append(remote);
      document.querySelector("a[href^='javascript:']").click();
      document.querySelector("form").requestSubmit();
    }`);
    const refused = await page.evaluate(
      `fetch(${JSON.stringify(`${elsewhere}/fetch`)}, { mode: "no-cors" }).then(() => "sent", () => "refused")`,
    );
    expect(refused).toBe("refused");
    // A text as code; later, since what a driver evaluates may evaluate more.
    await page.evaluate(`new Promise((resolve) => {
      setTimeout("window.ran = 'evaluated'");
      setTimeout(resolve, 50);
    })`);
    expect(await page.evaluate("window.ran")).toBeUndefined();
    expect(asked).toEqual([]);
    // The policy spoke up, so this has tried something.
    expect(problems.filter((problem) => problem.includes("Content Security Policy")).length).toBeGreaterThan(3);
  });

  test("of the edge's interface shows under the same policy", async () => {
    const docs = await browser.newPage();
    const complaints: string[] = [];
    docs.on("console", (message) => {
      if (message.type() === "error" || message.type() === "warning") complaints.push(message.text());
    });
    await docs.goto(`${edge.url}/docs`);
    await docs.getByRole("heading", { name: "The edge's interface" }).waitFor();
    expect(complaints).toEqual([]);
  });

  test("is shown in no other page's frame", async () => {
    const outer = await browser.newPage();
    await outer.goto(`${elsewhere}/outer`);
    await outer.setContent(`<iframe src="${edge.url}/" onload="window.loaded = true"></iframe>`);
    await outer.waitForFunction("window.loaded === true");
    const [, frame] = outer.frames();
    expect(frame?.url()).not.toBe(`${edge.url}/`);
    expect(await frame?.locator("#app").count()).toBe(0);
  });
});

/** A rollout whose every free text is one of these, through the real routes. */
async function recordHostileRollout(edge: TestEdge, payloads: readonly string[]): Promise<string> {
  const { id, token } = await edge.rollout("live");
  const all = payloads.join("\n");
  const [first = ""] = payloads;
  edge.inference.answer = () => ({
    tokens: payloads,
    toolCalls: [{ id: `call_${first}`, name: first, arguments: JSON.stringify({ [first]: all }) }],
  });
  const messages = [{ role: "user", content: all }];
  const call = {
    role: "assistant",
    content: all,
    tool_calls: [{ id: "c", type: "function", function: { name: all, arguments: all } }],
  };
  for (const body of [
    { model: first, messages },
    { model: first, messages: [...messages, call, { role: "tool", tool_call_id: "c", name: first, content: all }] },
    { model: first, messages: [...messages, { role: first, content: [{ type: "text", text: all }] }] },
  ]) {
    const { status } = await edge.post("/v1/chat/completions", token, body);
    if (status !== 200) throw new Error(`the call was answered ${status}`);
  }
  edge.inference.answer = () => ({ status: 400, error: first });
  await edge.post("/v1/chat/completions", token, { model: first, messages });
  for (const payload of payloads) {
    const { status } = await edge.post("/v1/rewards", token, { rollout_id: id, name: payload.slice(0, 128), value: 1 });
    if (status !== 200) throw new Error(`the reward was answered ${status}`);
  }
  await edge.admin.putRun({
    id: "run-of-markup",
    policy: "flight",
    agent: "flight",
    config: { watchFirstTool: first, note: all },
  });
  await edge.admin.finishRollout(id, { result: all, reward: 1 });
  return id;
}
