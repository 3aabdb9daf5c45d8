import { expect, test } from "vitest";
import { Continuation, type PromptPlan } from "../../../trainer/inference/continuation.ts";
import { makeChatTemplate, type Message } from "../../../trainer/model/chat-template.ts";
import { makeTokenizer } from "../../../trainer/model/tokenizer.ts";
import { TEMPLATE, tinyTokenizer } from "./tiny-model.ts";

const tokenizer = makeTokenizer(tinyTokenizer(), {});
const template = makeChatTemplate(TEMPLATE);
const END = 264;
const user: Message = { role: "user", content: "hello" };
/** "too" as three ids, which encoding would merge into one. */
const ODD = [116, 111, 111];

test("a conversation without earlier answers is its rendered text", () => {
  const { ids, thread } = make().plan(asked(user));
  expect(tokenizer.decode(ids)).toBe("user\nhello\nassistant\n");
  expect(thread).toBeNull();
});

test("an earlier answer comes back as it was sampled, and says where it was", () => {
  const continuation = make();
  const first = continuation.plan(asked(user));
  const answer = { role: "assistant", content: "too" };
  remember(continuation, first, [...ODD, END], answer);
  const second = continuation.plan(asked(user, answer, user));
  expect(Array.from(second.ids)).toEqual([
    ...first.ids,
    ...ODD,
    END,
    ...tokenizer.encode("\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"),
  ]);
  expect(second.thread).toBe(1);
  expect(Array.from(make().plan(asked(user, answer, user)).ids)).not.toEqual(Array.from(second.ids));
});

test("an answer that was cut gets the end of turn that the template writes", () => {
  const continuation = make();
  const first = continuation.plan(asked(user));
  const answer = { role: "assistant", content: "too" };
  remember(continuation, first, ODD, answer);
  const { ids } = continuation.plan(asked(user, answer, user));
  expect(Array.from(ids.subarray(0, first.ids.length + 4))).toEqual([...first.ids, ...ODD, END]);
});

test("tool calls are known by id, whatever white space and key order the client made of them", () => {
  const continuation = make();
  const first = continuation.plan(asked(user));
  const sampled = assistant("call_1", '{"b":[1,2], "a":"é"}');
  remember(continuation, first, [...ODD, END], sampled);
  const same = assistant("call_1", '{ "a": "\\u00e9", "b": [1, 2] }');
  const { ids } = continuation.plan(asked(user, same, tool("call_1")));
  expect(Array.from(ids.subarray(0, first.ids.length + 4))).toEqual([...first.ids, ...ODD, END]);
});

test.each([
  ["another value", assistant("call_1", '{"a":2}')],
  [
    "another name",
    { ...assistant("call_1", '{"a":1}'), toolCalls: [{ id: "call_1", name: "sub", arguments: '{"a":1}' }] },
  ],
  ["another id", assistant("call_2", '{"a":1}')],
  ["one more call", { ...assistant("call_1", '{"a":1}'), toolCalls: [call("call_1", '{"a":1}'), call("x", "{}")] }],
])("%s is another turn and is rendered as it is", (_, changed) => {
  const continuation = make();
  const first = continuation.plan(asked(user));
  remember(continuation, first, [...ODD, END], assistant("call_1", '{"a":1}'));
  const conversation = asked(user, changed, tool("call_1"));
  expect(Array.from(continuation.plan(conversation).ids)).toEqual(
    Array.from(tokenizer.encode(template.render(conversation, "answer"))),
  );
});

test("three turns are one growing row", () => {
  const continuation = make();
  const messages: Message[] = [user];
  let row: number[] = [];
  for (const id of ["call_1", "call_2", "call_3"]) {
    const plan = continuation.plan(asked(...messages));
    expect(Array.from(plan.ids.subarray(0, row.length))).toEqual(row);
    row = [...plan.ids, ...ODD, END];
    remember(continuation, plan, [...ODD, END], assistant(id, '{"a":1,"b":2}'));
    messages.push(assistant(id, '{"b": 2, "a": 1}'), tool(id));
  }
});

test("a prompt before the answer that was changed is not continued", () => {
  const continuation = make();
  const answer = { role: "assistant", content: "too" };
  remember(continuation, continuation.plan(asked(user)), [...ODD, END], answer);
  const changed = asked({ role: "user", content: "hullo" }, answer, user);
  expect(Array.from(continuation.plan(changed).ids)).toEqual(
    Array.from(tokenizer.encode(template.render(changed, "answer"))),
  );
});

test("a template that rewrites earlier turns is followed and not the ids", () => {
  const forgetful = makeChatTemplate(
    "{% for m in messages %}{% if m.role == 'assistant' and not loop.last %}…<|im_end|>{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}",
  );
  const continuation = new Continuation({ template: forgetful, tokenizer, stopIds: [END], maxIds: 1000 });
  const answer = { role: "assistant", content: "too" };
  remember(continuation, continuation.plan(asked(user)), [...ODD, END], answer);
  const { ids } = continuation.plan(asked(user, answer, user));
  expect(Array.from(ids)).toEqual(Array.from(tokenizer.encode("hello<|im_end|>…<|im_end|>hello<|im_end|>")));
});

test("beyond its bound the oldest turns are forgotten", () => {
  const continuation = new Continuation({ template, tokenizer, stopIds: [END], maxIds: 60 });
  const plan = continuation.plan(asked(user));
  for (const id of ["call_1", "call_2", "call_3"]) remember(continuation, plan, [...ODD, END], assistant(id, "{}"));
  const continued = ["call_1", "call_2", "call_3"].map(
    (id) => continuation.plan(asked(user, assistant(id, "{ }"), tool(id))).thread !== null,
  );
  expect(continued).toEqual([false, true, true]);
});

test("with no room for any it renders every turn anew", () => {
  const continuation = make(0);
  const first = continuation.plan(asked(user));
  const answer = { role: "assistant", content: "too" };
  remember(continuation, first, [...ODD, END], answer);
  const { ids, thread } = continuation.plan(asked(user, answer, user));
  expect(thread).toBeNull();
  expect(Array.from(ids)).toEqual(Array.from(tokenizer.encode(template.render(asked(user, answer, user), "answer"))));
});

function make(maxIds = 1000): Continuation {
  return new Continuation({ template, tokenizer, stopIds: [END], maxIds });
}

function asked(...messages: Message[]): { messages: Message[]; tools: unknown[] } {
  return { messages, tools: [] };
}

function call(id: string, text: string): { id: string; name: string; arguments: string } {
  return { id, name: "add", arguments: text };
}

function assistant(id: string, text: string): Message {
  return { role: "assistant", content: "", toolCalls: [call(id, text)] };
}

function tool(id: string): Message {
  return { role: "tool", content: "3", toolCallId: id };
}

function remember(continuation: Continuation, plan: PromptPlan, responseIds: number[], message: Message): void {
  continuation.remember({ conversation: plan.conversation, promptIds: plan.ids, responseIds, message, thread: 1 });
}
