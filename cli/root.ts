import { fileURLToPath } from "node:url";

/** The checkout's own folder, wherever the command was called from. */
export const ROOT = fileURLToPath(new URL("..", import.meta.url)).replace(/\/$/, "");
