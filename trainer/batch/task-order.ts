import { Random } from "../engine/random.ts";

/**
 * Which task the n-th group of a run is about: a seeded shuffle of all tasks, another one for each pass. A function of
 * its arguments alone, so that a resumed run needs no cursor.
 * @param group counted from 0
 */
export function taskOfGroup(taskIds: readonly string[], group: number, seed: number): string | undefined {
  if (taskIds.length === 0) return undefined;
  const pass = Math.floor(group / taskIds.length);
  return shuffled(taskIds, seed, pass)[group % taskIds.length];
}

function shuffled(ids: readonly string[], seed: number, pass: number): string[] {
  // Seeds of neighbouring passes must not meet those of neighbouring runs.
  const random = Random.seeded(Math.imul(seed, 0x9e3779b1) + pass);
  const order = [...ids];
  for (let last = order.length - 1; last > 0; last -= 1) {
    const other = Math.floor(random.next() * (last + 1));
    const kept = order[last] ?? "";
    order[last] = order[other] ?? "";
    order[other] = kept;
  }
  return order;
}
