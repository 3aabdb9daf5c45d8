import { expect, test } from "vitest";
import { edgeClient } from "#shared/client.ts";
import { LOCAL_TASKS } from "../../cli/local-tasks.ts";
import { seedTask } from "../../cli/installation.ts";

test("a store that looks away for a moment does not end the start; a refusal does, at once", async () => {
  const task = LOCAL_TASKS["flight"];
  if (task === undefined) throw new Error("the flight task is gone");
  const base = { artifact: "models/flight", sha256: "0".repeat(64) };
  const asked: string[] = [];
  const answering = (status: (at: number) => number) =>
    edgeClient({
      baseUrl: "http://edge",
      token: () => "none",
      fetch: (input) => {
        const path = new URL(input instanceof Request ? input.url : String(input)).pathname;
        const code = status(asked.push(path));
        const body = code === 200 ? { created: 1, ok: true } : { error: { message: "not now" } };
        return Promise.resolve(Response.json(body, { status: code }));
      },
    });
  await seedTask(
    answering((at) => (at === 2 ? 503 : 200)),
    { task, base, valTasks: 0 },
  );
  const tasks = Array.from({ length: 5 + 1 }, () => "/v1/tasks");
  expect(asked).toEqual([...tasks, "/v1/policies"]);

  asked.length = 0;
  const refused = seedTask(
    answering(() => 400),
    { task, base, valTasks: 0 },
  );
  await expect(refused).rejects.toThrow("not now");
  expect(asked).toEqual(["/v1/tasks"]);
});
