import { defineConfig } from "drizzle-kit";

/** `npm run migrations -- --name what-changed` writes the next migration from the tables. */
export default defineConfig({
  dialect: "sqlite",
  schema: ["./shared/tables.ts", "./shared/store/agl-tables.ts"],
  out: "./migrations",
});
