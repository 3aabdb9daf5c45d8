import { describe, expect, it } from "vitest";
import { makeTask } from "../../edge/agents/flight/tasks.ts";
import { spacedJson, SYSTEM, TOOLS } from "../../edge/agents/flight/world.ts";
import { CHAT_TEMPLATE } from "../../models/chat-template.ts";
import { buildTokenizer, tokenizerConfig } from "../../models/tokenizer.ts";
import {
  type Behaviour,
  BEHAVIOURS,
  makeDrill,
  makeTrace,
  PREAMBLE,
  textOf,
  vocabularyTexts,
} from "../../models/traces.ts";
import { makeChatTemplate, type Message } from "../../trainer/model/chat-template.ts";
import { makeTokenizer } from "../../trainer/model/tokenizer.ts";
import { hermesToolCalls } from "../../trainer/model/tool-call.ts";

const template = makeChatTemplate(CHAT_TEMPLATE);
const COUNT = 6000;

/** The messages of a trace, read back from its text. */
function messagesOf(text: string): Message[] {
  return text
    .split("<|im_start|>")
    .slice(1)
    .map((turn) => {
      const [role = ""] = turn.split("\n", 1);
      const body = turn.slice(role.length + 1).replace(/<\|im_end\|>\n?$/u, "");
      if (role !== "assistant") return { role, content: role === "system" ? SYSTEM : body };
      const parts = [...hermesToolCalls.start().push(body)];
      const toolCalls = parts.flatMap((part) => (part.type === "tool_call" ? [{ id: "call", ...part.call }] : []));
      return toolCalls.length > 0 ? { role, content: "", toolCalls } : { role, content: body };
    });
}

describe("traces of the flight agent", () => {
  it("show each behaviour as often as the table says, and memory first in a third", () => {
    expect(Object.values(BEHAVIOURS).reduce<number>((sum, share) => sum + share, 0)).toBeCloseTo(1, 9);
    const counts = new Map<string, number>();
    for (let index = 0; index < COUNT; index++) {
      const { behaviour } = makeTrace(index);
      counts.set(behaviour, (counts.get(behaviour) ?? 0) + 1);
    }
    // The largest standard deviation of a share of 6,000 is 0.0065; four of them.
    for (const [behaviour, share] of Object.entries(BEHAVIOURS))
      expect(Math.abs((counts.get(behaviour) ?? 0) / COUNT - share)).toBeLessThan(0.026);
    const { memory_search_answer, memory_answer, memory_twice } = BEHAVIOURS;
    expect(memory_search_answer + memory_answer + memory_twice).toBeCloseTo(0.33, 2);
  });

  it("are exactly what the chat template renders from their messages", () => {
    for (const behaviour of Object.keys(BEHAVIOURS) as Behaviour[]) {
      for (let index = 0; index < 60; index++) {
        const text = textOf(makeTrace(index, behaviour));
        // The template ends each turn with a newline; a model's last turn ends with the mark before it.
        expect(`${text}\n`).toBe(template.render({ messages: messagesOf(text), tools: TOOLS }, "none"));
      }
    }
  });

  it("begin as the agent's prompts do", () => {
    const { message } = makeTask("make", 5).input;
    const messages = [
      { role: "system", content: SYSTEM },
      { role: "user", content: message },
    ];
    const prompt = template.render({ messages, tools: TOOLS }, "answer");
    expect(prompt.startsWith(PREAMBLE)).toBe(true);
    expect(makeTrace(5).segments[0]?.text).toBe(prompt);
  });

  it("tokenize stretch by stretch as they do whole, so that masks sit on the right tokens", () => {
    const tokenizer = makeTokenizer(buildTokenizer(vocabularyTexts()), tokenizerConfig(CHAT_TEMPLATE));
    for (let index = 0; index < 300; index++) {
      for (const trace of [makeTrace(index), makeDrill(index)]) {
        const stretches = trace.segments.flatMap(({ text }) => [...tokenizer.encode(text)]);
        expect(stretches).toEqual([...tokenizer.encode(textOf(trace))]);
        expect(stretches.length).toBeLessThanOrEqual(256);
      }
    }
  });

  it("never train on a failing call, but on the one that follows it", () => {
    let failures = 0;
    for (let index = 0; index < COUNT; index++) {
      const { segments } = makeTrace(index);
      for (const [i, { text }] of segments.entries()) {
        if (!text.includes('{"error"')) continue;
        failures += 1;
        expect(segments[i - 1]?.trained).toBe(false);
        expect(segments[i + 1]?.trained).toBe(true);
      }
    }
    expect(failures).toBeGreaterThan(COUNT / 50);
  });

  it("never search before they ask memory", () => {
    const both = Array.from({ length: COUNT }, (_, index) => textOf(makeTrace(index))).filter(
      (text) => text.includes('{"name": "memory"') && text.includes('{"name": "search"'),
    );
    expect(both.length).toBeGreaterThan(COUNT / 5);
    for (const text of both) expect(text.indexOf('"memory"')).toBeLessThan(text.indexOf('"search"'));
  });

  it("answer rightly whenever memory and search were asked in turn", () => {
    for (let index = 0; index < 300; index++) {
      const { expected } = makeTask("make", index).judge;
      expect(textOf(makeTrace(index, "memory_search_answer"))).toContain(`Booked "${expected}".`);
    }
  });

  it("do not let the task tell the behaviour: phrasings are spread alike over all of them", () => {
    const searches = { all: 0, quoted: 0 };
    const memories = { all: 0, quoted: 0 };
    for (let index = 0; index < COUNT; index++) {
      const counts = makeTrace(index).behaviour.startsWith("memory") ? memories : searches;
      counts.all += 1;
      if (makeTask("make", index).input.message.startsWith('"')) counts.quoted += 1;
    }
    // A quarter each; standard deviations 0.010 and 0.007.
    expect(Math.abs(memories.quoted / memories.all - searches.quoted / searches.all)).toBeLessThan(0.05);
  });
});

describe("copying drills", () => {
  it("say everything twice and train on the second time", () => {
    const { segments } = makeDrill(4);
    const [given, asked] = segments;
    const items = JSON.parse(given?.text.split("\n")[0] ?? "") as string[];
    expect(asked?.text).toBe(`", ${spacedJson(items.slice(1)).slice(1)}<|im_end|>`);
    expect(segments.map(({ trained }) => trained)).toEqual([false, true]);
  });
});
