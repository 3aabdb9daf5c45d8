import OpenAI from "openai";
import { agentWorker } from "../../../edge/agents/wrapper.ts";

/** An agent that does what its input says, for tests of the dispatcher. It ends with how many runs there were at once. */

let active = 0;

export default agentWorker(async (input, env) => {
  active++;
  const atOnce = active;
  try {
    const { behave, ms = 0 } = input as { behave: string; ms?: number };
    if (behave === "crash") throw new Error("the agent crashed");
    if (behave === "hang") await new Promise((resolve) => setTimeout(resolve, 60_000));
    if (ms > 0) await new Promise((resolve) => setTimeout(resolve, ms));
    const openai = new OpenAI({ baseURL: env.OPENAI_BASE_URL, apiKey: env.OPENAI_API_KEY, maxRetries: 0 });
    await openai.chat.completions.create({ model: "any", messages: [{ role: "user", content: behave }] });
    return `at once: ${atOnce}`;
  } finally {
    active--;
  }
});
