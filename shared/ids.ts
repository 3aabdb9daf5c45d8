import { uuidv7 } from "uuidv7";

/** Prefix of each kind of id. Ids are made by clients (edge, trainer, cli), so every write can be repeated. */
const PREFIXES = {
  task: "ta",
  rollout: "ro",
  group: "gr",
  call: "ca",
  reward: "re",
  batch: "ba",
  run: "ru",
  span: "sp",
} as const;

/** A new time-ordered id, such as `ro_0199…` (UUID version 7 without dashes). */
export function newId(kind: keyof typeof PREFIXES): string {
  return `${PREFIXES[kind]}_${uuidv7().replaceAll("-", "")}`;
}
