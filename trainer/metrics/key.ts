/** Values that belong to one task, role, reason or age carry it in their key: `reward_mean/role/writer`. */

/** The kinds of things that a metric may be told apart by. */
export const LABELS = ["task", "role", "reason", "versions"] as const;
export type Label = (typeof LABELS)[number];

/** A key's parts; `label` and `value` are there for one of several values of a metric. */
export interface MetricKey {
  readonly name: string;
  readonly label?: Label;
  readonly value?: string;
}

/** `("reward_mean", "role", "writer")` → `reward_mean/role/writer`. */
export function labelledKey(name: string, label: Label, value: string | number): string {
  return `${name}/${label}/${value}`;
}

/** The inverse of {@link labelledKey}; a value may hold slashes itself. A key of another form is a name alone. */
export function parseKey(key: string): MetricKey {
  const [name = "", kind, ...rest] = key.split("/");
  const label = LABELS.find((each) => each === kind);
  return label === undefined || rest.length === 0 ? { name: key } : { name, label, value: rest.join("/") };
}
