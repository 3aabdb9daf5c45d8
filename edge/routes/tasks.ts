import { Hono } from "hono";
import { createTasks } from "#shared/store/tasks.ts";
import { tasksBodySchema } from "#shared/wire.ts";
import { requireScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";
import { checkJudge } from "../record/terminal.ts";
import { jsonBody } from "./json-body.ts";

/** `/v1/tasks`: what agents are given, and how their results are judged. */
export const taskRoutes = new Hono<EdgeHono>().post("/", async (c) => {
  const { parts, principal, writer } = c.var;
  requireScope(principal, "trainer");
  const { tasks } = await jsonBody(c.req.raw, tasksBodySchema);
  for (const { judge } of tasks) if (judge !== null) checkJudge(judge);
  const createdAt = parts.now();
  await writer.transact(createTasks(tasks.map((task) => ({ ...task, tenantId: principal.tenantId, createdAt }))));
  return c.json({ created: tasks.length });
});
