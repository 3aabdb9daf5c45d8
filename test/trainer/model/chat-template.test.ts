import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { loadChatTemplate, makeChatTemplate } from "../../../trainer/model/chat-template.ts";
import { TEMPLATE } from "../inference/tiny-model.ts";

describe("a ChatML template", () => {
  const template = makeChatTemplate(TEMPLATE);

  test("renders roles, tools and the header of the answer", () => {
    const messages = [
      { role: "system", content: "Be brief." },
      { role: "user", content: "hi" },
    ];
    expect(template.render({ messages, tools: [] }, "answer")).toBe(
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    );
    expect(template.render({ messages, tools: [{ name: "add" }] }, "none")).toContain('<tools>{"name": "add"}</tools>');
    expect(template.takesTools).toBe(true);
  });

  test("gives tool arguments to the template as an object and not as text in text", () => {
    const message = { role: "assistant", content: "", toolCalls: [{ id: "1", name: "add", arguments: '{"a":1}' }] };
    expect(template.render({ messages: [message], tools: [] }, "none")).toContain(
      '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    );
  });

  test("developer messages are system messages", () => {
    expect(template.render({ messages: [{ role: "developer", content: "x" }], tools: [] }, "none")).toBe(
      "<|im_start|>system\nx<|im_end|>\n",
    );
  });
});

test("what the template refuses is the request's fault and says why", () => {
  const template = makeChatTemplate("{{ raise_exception('roles must alternate') }}");
  expect(() => template.render({ messages: [], tools: [] }, "none")).toThrow(/does not take these messages.*alternate/);
});

describe("where a template is looked for", () => {
  let dir = "";
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), "fulgur-template-"));
  });
  afterEach(() => rm(dir, { recursive: true }));
  const rendered = async (): Promise<string | undefined> =>
    (await loadChatTemplate(dir))?.render({ messages: [], tools: [] }, "none");
  const config = (value: unknown): Promise<void> =>
    writeFile(join(dir, "tokenizer_config.json"), JSON.stringify(value));

  test("a folder without one has none", async () => {
    expect(await loadChatTemplate(dir)).toBeNull();
  });

  test("tokenizer_config.json, with its special tokens as variables", async () => {
    await config({ chat_template: "{{ bos_token }}!", bos_token: { content: "<s>" } });
    expect(await rendered()).toBe("<s>!");
  });

  test("of several named ones that for tools", async () => {
    await config({
      chat_template: [
        { name: "default", template: "d" },
        { name: "tool_use", template: "t" },
      ],
    });
    expect(await rendered()).toBe("t");
  });

  test("chat_template.jinja before the config", async () => {
    await config({ chat_template: "config" });
    await writeFile(join(dir, "chat_template.jinja"), "file");
    expect(await rendered()).toBe("file");
  });

  test("one that cannot be parsed is named with its file", async () => {
    await config({ chat_template: "{% if %}" });
    await expect(loadChatTemplate(dir)).rejects.toThrow(/Repair chat_template in .*tokenizer_config\.json/);
  });
});
