import { needsCritic } from "../../trainer/advantage/advantage.ts";
import type { Preset } from "../../trainer/algorithm.ts";
import { columns } from "./columns.ts";
import type { Style } from "./style.ts";

export interface NamedAlgorithm extends Preset {
  readonly name: string;
  readonly isDefault: boolean;
}

/** The algorithms' choices side by side, then what each is and when to choose it. */
export function algorithmsText(algorithms: readonly NamedAlgorithm[], style: Style): string {
  return [
    columns(
      ["NAME", "CREDIT", "ADVANTAGE", "LOSS", "KL TO THE START", "PAPER"],
      algorithms.map(({ name, credit, advantage, loss, notes }) => [
        style.bold(name),
        credit.overlong === undefined ? credit.type : `${credit.type} + overlong`,
        advantage.type,
        loss.type,
        klOf(loss),
        paperOf(notes.paper),
      ]),
      style,
    ),
    columns(
      ["NAME", "WHAT IT IS, AND WHEN TO CHOOSE IT"],
      algorithms.map(({ name, notes }) => [style.bold(name), `${notes.what}\n${style.cyan(notes.when)}`]),
      style,
    ),
    [
      "only ppo needs a critic, and trains it itself; advice is a rule of thumb, measured curves are in docs/ALGORITHMS.md",
      "npx fulgur algorithms NAME tells which data rate, groups and staleness suit it; start --algorithm NAME trains",
    ].join("\n"),
  ].join("\n\n");
}

/** One algorithm in full: what helps to choose it, then every setting. */
export function algorithmText(algorithm: NamedAlgorithm, style: Style): string {
  const { name, isDefault, notes, credit, advantage, loss } = algorithm;
  return [
    `${style.bold(name)}${isDefault ? "  (default)" : ""}  ${notes.what}`,
    columns(
      ["CHOOSE IT BY", ""],
      [
        ["when", notes.when],
        ["data rate", notes.dataRate],
        ["group size", notes.groupSize],
        ["staleness", notes.staleness],
        ["critic", needsCritic(advantage) ? "a value head on the policy's trunk, trained with it" : "none"],
        ["paper", notes.paper ?? "ours"],
      ],
      style,
    ),
    columns(
      ["PART", "TYPE", "SETTINGS"],
      Object.entries({ credit, advantage, loss }).map(([part, { type, ...settings }]) => [
        part,
        type,
        Object.entries(settings).map(setting).join("\n"),
      ]),
      style,
    ),
    `npx fulgur start --algorithm ${name}; equations and departures from the paper: docs/ALGORITHMS.md`,
  ].join("\n\n");
}

function klOf(loss: NamedAlgorithm["loss"]): string {
  if (loss.klCoefficient === 0) return "–";
  return loss.type === "dpo"
    ? String(loss.klCoefficient)
    : `${loss.klEstimator} in the ${loss.klPlace}, ${loss.klCoefficient}`;
}

/** The arXiv number alone, as the table is wide. */
function paperOf(paper: string | null): string {
  return paper?.split(", ").at(-1) ?? "ours";
}

/** `clipLow 0.2`, `importance truncated cap 2` */
function setting([name, value]: readonly [string, unknown]): string {
  if (typeof value !== "object" || value === null) return `${name} ${String(value)}`;
  const fields = Object.entries(value).map(([key, field]) =>
    key === "type" ? String(field) : `${key} ${String(field)}`,
  );
  return `${name} ${fields.join(", ")}`;
}
