import { defineConfig } from "drizzle-kit";

/** `npm run migrations -- --name what-changed` writes the next migration from shared/tables.ts. */
export default defineConfig({
  dialect: "sqlite",
  schema: "./shared/tables.ts",
  out: "./migrations",
});
