import { readFile } from "node:fs/promises";
import { generateSQLiteDrizzleJson, generateSQLiteMigration } from "drizzle-kit/api";
import { expect, it } from "vitest";
import { z } from "zod";
import * as aglTables from "#shared/store/agl-tables.ts";
import * as tables from "#shared/tables.ts";

const journalSchema = z.object({ entries: z.array(z.object({ idx: z.number(), tag: z.string() })).min(1) });

it("is what the migrations make (else: npm run migrations -- --name what-changed)", async () => {
  const folder = new URL("../../migrations/", import.meta.url);
  const journal = journalSchema.parse(JSON.parse(await readFile(new URL("meta/_journal.json", folder), "utf8")));
  const newest = journal.entries.at(-1);
  const snapshot: unknown = JSON.parse(
    await readFile(new URL(`meta/${String(newest?.idx).padStart(4, "0")}_snapshot.json`, folder), "utf8"),
  );
  const now = await generateSQLiteDrizzleJson({ ...tables, ...aglTables });
  expect(Object.keys(now.tables)).toContain("rollouts");
  expect(await generateSQLiteMigration(snapshot as typeof now, now)).toEqual([]);
});
