import { useState } from "preact/hooks";
import type { RolloutView } from "#shared/wire.ts";
import { ROLLOUT_STATUSES } from "#shared/words.ts";
import { api } from "./api.ts";
import { clock, fixed } from "./format.ts";
import { usePolled } from "./poll.ts";

const MODES = ["all", "train", "val", "live"];
const STATUSES = ["begun", "all", ...ROLLOUT_STATUSES];
const BEGUN = ROLLOUT_STATUSES.filter((status) => status !== "queued").join(",");

/** The newest rollouts with what they did, what they earned and what became of them. */
export function Rollouts() {
  const [mode, setMode] = useState("all");
  // While a run trains, the newest are those that have not begun.
  const [status, setStatus] = useState("begun");
  const query = {
    limit: "50",
    ...(mode === "all" ? {} : { mode }),
    ...(status === "all" ? {} : { status: status === "begun" ? BEGUN : status }),
  };
  const { value, error } = usePolled(() => api.listRollouts(query), `rollouts:${mode}:${status}`, 2500);
  return (
    <section aria-label="rollouts">
      <div class="bar">
        <h2>Rollouts</h2>
        <div class="choices">
          <Choice name="mode" names={MODES} chosen={mode} onChoose={setMode} />
          <Choice name="status" names={STATUSES} chosen={status} onChoose={setStatus} />
        </div>
      </div>
      {error !== undefined && <p class="problem">{error}</p>}
      {value !== undefined && value.rollouts.length === 0 && <p class="quiet">No such rollout yet.</p>}
      {value !== undefined && value.rollouts.length > 0 && (
        <div class="scroll">
          <table>
            <thead>
              <tr>
                <th>started</th>
                <th>agent</th>
                <th>mode</th>
                <th>tools, in order</th>
                <th>answer</th>
                <th class="number">reward</th>
                <th>status</th>
                <th>rollout</th>
              </tr>
            </thead>
            <tbody>
              {value.rollouts.map((rollout) => (
                <Row key={rollout.id} rollout={rollout} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

interface ChoiceProps {
  readonly name: string;
  readonly names: readonly string[];
  readonly chosen: string;
  readonly onChoose: (name: string) => void;
}

function Choice({ name, names, chosen, onChoose }: ChoiceProps) {
  return (
    <label>
      {name}{" "}
      <select value={chosen} onChange={(event) => onChoose(event.currentTarget.value)}>
        {names.map((each) => (
          <option key={each}>{each}</option>
        ))}
      </select>
    </label>
  );
}

function Row({ rollout }: { readonly rollout: RolloutView }) {
  const outcome = rollout.outcome;
  return (
    <tr>
      <td>{clock(rollout.createdAt)}</td>
      <td>{rollout.agent}</td>
      <td>{rollout.mode}</td>
      <td>{outcome === null ? "" : outcome.tools.length === 0 ? "none" : outcome.tools.join(" → ")}</td>
      <td>{outcome === null ? "" : outcome.correctness === 1 ? "right" : "wrong"}</td>
      <td class="number">
        {rollout.reward !== null && <Meter value={rollout.reward} />}
        {fixed(rollout.reward)}
      </td>
      <td>{disposition(rollout)}</td>
      <td>
        <a href={`#/rollouts/${rollout.id}`}>
          <code>{rollout.id.slice(-10)}</code>
        </a>
      </td>
    </tr>
  );
}

function Meter({ value }: { readonly value: number }) {
  const share = Math.max(0, Math.min(1, value));
  return (
    <span class="meter" aria-hidden="true">
      <span style={{ width: `${share * 100}%` }} />
    </span>
  );
}

/** One phrase: its status, or what became of it. */
export function disposition(rollout: RolloutView): string {
  if (rollout.disposition === "trained") return "trained";
  if (rollout.disposition === "dropped")
    return `not trained: ${(rollout.dropReason ?? "no reason").replaceAll("_", " ")}`;
  return rollout.status;
}
