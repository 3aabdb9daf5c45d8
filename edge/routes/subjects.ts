import { Hono } from "hono";
import { FulgurError } from "#shared/errors.ts";
import { snakeKeys } from "#shared/wire.ts";
import { requireScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";
import { deleteSubject } from "../record/subjects.ts";

/** `DELETE /v1/subjects/:id`: a person's data is deleted; the answer says what was trained on already. */
export const subjectRoutes = new Hono<EdgeHono>().delete("/:id", async (c) => {
  const { parts, principal, db, writer } = c.var;
  requireScope(principal, "admin");
  const id = c.req.param("id");
  if (id.length > 256) throw new FulgurError("ERR_INVALID_REQUEST", "a subject's id has at most 256 characters");
  return c.json(snakeKeys(await deleteSubject({ db: db(), writer, now: parts.now() }, principal, id)));
});
