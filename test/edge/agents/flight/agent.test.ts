import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { z } from "zod";
import { FLIGHT_AGENT } from "../../../../cli/local-tasks.ts";
import { bookFlight, useTool } from "../../../../edge/agents/flight/agent.ts";
import { makeRequest, makeTask } from "../../../../edge/agents/flight/tasks.ts";
import { makeWorld, SYSTEM } from "../../../../edge/agents/flight/world.ts";
import { newId } from "#shared/ids.ts";
import type { RolloutDetail } from "#shared/wire.ts";
import { startTestEdge, type TestEdge } from "../../../support/edge.ts";
import type { MockReply } from "../../../support/mock-inference.ts";
import { until } from "../../../support/until.ts";

/** The flight agent's own Worker, dispatched by the edge; its model is a script. */

const messagesSchema = z.array(
  z.object({ role: z.string(), content: z.string().nullable(), tool_call_id: z.string().optional() }),
);
type Message = z.infer<typeof messagesSchema>[number];

let edge: TestEdge;
let script: (turn: number, messages: readonly Message[]) => MockReply;

beforeAll(async () => {
  edge = await startTestEdge({
    agents: { flight: { ...FLIGHT_AGENT, max_attempts: 1 } },
    agentEntries: { flight: join(import.meta.dirname, "../../../../edge/agents/flight/worker.ts") },
    answer: ({ messages }) => {
      const said = messagesSchema.parse(messages);
      return script(said.filter(({ role }) => role === "assistant").length, said);
    },
  });
});
afterAll(() => edge.stop());
beforeEach(() => {
  edge.inference.requests.length = 0;
});

let callNumber = 0;
const uses = (name: string, args: unknown): MockReply => ({
  tokens: ["<tool_call>", name],
  toolCalls: [{ id: `call_${++callNumber}`, name, arguments: typeof args === "string" ? args : JSON.stringify(args) }],
});
const says = (text: string): MockReply => ({ tokens: [text] });

async function run(index: number, maxAttempts = 1): Promise<RolloutDetail> {
  const { id: taskId, input, judge } = makeTask("train", index);
  await edge.admin.createTasks([{ id: taskId, agent: "flight", split: "train", input, judge }]);
  const id = newId("rollout");
  await edge.admin.createRollouts([{ id, taskId, agent: "flight", mode: "train", maxAttempts }]);
  await until("the rollout's end", async () => {
    const { status } = (await edge.admin.readRollout(id)).rollout;
    return status === "finished" || status === "failed";
  });
  return edge.admin.readRollout(id);
}

describe("the flight agent", () => {
  it("earns the whole reward for memory, search and the right answer", async () => {
    const { traveller, from, to } = makeRequest("train", 0);
    const { judge, input } = makeTask("train", 0);
    const world = makeWorld(input.world);
    const { when = "noon" } = world.preference(traveller) ?? {};
    const heard: string[] = [];
    script = (turn, messages) => {
      const last = messages.at(-1);
      if (last?.role === "tool") heard.push(last.content ?? "");
      if (turn === 0) return uses("memory", { traveller });
      if (turn === 1) return uses("search", { from, to, when });
      return says(`Booked "${judge.expected}".`);
    };
    const { rollout, calls, rewards } = await run(0);
    expect(rollout).toMatchObject({
      status: "finished",
      result: `Booked "${judge.expected}".`,
      reward: 1,
      disposition: null,
      outcome: { status: 1, terminal: 1, correctness: 1, format: 1, tools: ["memory", "search"] },
    });
    expect(heard).toEqual([world.memory({ traveller }), world.search({ from, to, when })]);
    expect(rewards.map(({ source, name, value }) => [source, name, value])).toEqual([
      ["air", "memory", 0.3],
      ["air", "search", 0.2],
      ["terminal", "judge", 1],
    ]);
    expect(calls).toHaveLength(3);
    expect(calls.every(({ trainable, version }) => trainable && version === "flight@0")).toBe(true);
  });

  it("sends what anyone's agent would send, and the edge asks for token ids", async () => {
    script = () => says("Booked nothing.");
    const { rollout } = await run(1);
    expect(rollout).toMatchObject({ result: "Booked nothing.", reward: 0, outcome: { tools: [] } });
    const [request] = edge.inference.requests;
    expect(request).toMatchObject({
      model: "flight@0",
      temperature: 1,
      max_tokens: 64,
      return_token_ids: true,
      messages: [
        { role: "system", content: SYSTEM },
        { role: "user", content: makeTask("train", 1).input.message },
      ],
    });
    expect(z.array(z.object({ function: z.object({ name: z.string() }) })).parse(request?.["tools"])).toMatchObject([
      { function: { name: "memory" } },
      { function: { name: "search" } },
    ]);
  });

  it("tells the model of calls that make no sense, and they cost it reward", async () => {
    const heard: string[] = [];
    script = (turn, messages) => {
      const last = messages.at(-1);
      if (last?.role === "tool") heard.push(last.content ?? "");
      if (turn === 0) return uses("memory", "{not json");
      if (turn === 1) return uses("search", { from: "Atlantis", to: "Oslo", when: "noon" });
      if (turn === 2) return uses("teleport", {});
      return says("I give up.");
    };
    const { rollout, rewards } = await run(2);
    expect(heard.map((text) => JSON.parse(text))).toEqual([
      { error: "arguments are not JSON" },
      { error: "unknown city" },
      { error: "unknown tool" },
    ]);
    expect(rewards.filter(({ source }) => source === "air").map(({ name, value }) => [name, value])).toEqual([
      ["memory", -0.3],
      ["search", -0.2],
    ]);
    expect(rollout).toMatchObject({ reward: -0.5, outcome: { status: -1, tools: ["memory", "search", "teleport"] } });
  });

  it("waits for what stands between it and its tools", async () => {
    const heard: string[] = [];
    script = (turn, messages) => {
      const last = messages.at(-1);
      if (last?.role === "tool") heard.push(last.content ?? "");
      return turn === 0 ? uses("memory", { traveller: "Nobody" }) : says("Booked nothing.");
    };
    const asked: string[] = [];
    const { input } = makeTask("train", 5);
    const environment = { OPENAI_BASE_URL: `${edge.inference.url}/v1`, OPENAI_API_KEY: "any" };
    const said = await bookFlight(input, environment, async (world, name, argumentsText) => {
      asked.push(`${name} ${argumentsText}`);
      const told = await Promise.resolve(useTool(world, name, argumentsText));
      return `late: ${told}`;
    });
    expect(said).toBe("Booked nothing.");
    expect(asked).toEqual(['memory {"traveller":"Nobody"}']);
    expect(heard).toEqual([`late: ${makeWorld(input.world).memory({ traveller: "Nobody" })}`]);
  });

  it("stops after six turns with what was said last", async () => {
    script = () => uses("memory", { traveller: "Nobody" });
    const { rollout, calls } = await run(3);
    expect(calls).toHaveLength(6);
    expect(rollout).toMatchObject({ status: "finished", result: "" });
  });

  it("fails as an upstream failure where its model is away, and earns nothing", async () => {
    script = () => ({ status: 500, error: "out of memory" });
    const { rollout } = await run(4);
    expect(rollout).toMatchObject({ status: "failed", reward: null, dropReason: "upstream_failed" });
  });
});
