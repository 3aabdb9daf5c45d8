import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { api } from "./api.ts";
import { usePolled } from "./poll.ts";
import { Rollout } from "./rollout.tsx";
import { Rollouts } from "./rollouts.tsx";
import { Run } from "./run.tsx";
import { stepsFollower } from "./steps.ts";
import "uplot/dist/uPlot.min.css";
import "./style.css";

const stepsOf = stepsFollower((runId, since) => api.listSteps(runId, since));

function App() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const follow = (): void => setHash(location.hash);
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const rolloutId = /^#\/rollouts\/([\w-]+)$/.exec(hash)?.[1];
  return (
    <>
      <header class="top">
        <a href="#/" class="name">
          Fulgur
        </a>
        <span class="quiet">an agent, learning from its own runs</span>
      </header>
      <main>{rolloutId === undefined ? <Overview /> : <Rollout id={rolloutId} />}</main>
    </>
  );
}

function Overview() {
  const [chosen, setChosen] = useState<string>();
  const runs = usePolled(() => api.listRuns(), "runs", 5000);
  const run = runs.value?.find((candidate) => candidate.id === chosen) ?? runs.value?.[0];
  const runId = run?.id ?? "";
  const steps = usePolled(async () => (runId === "" ? [] : await stepsOf(runId)), `steps:${runId}`, 2500);
  const error = runs.error ?? steps.error;
  return (
    <>
      {error !== undefined && <p class="problem">{error}</p>}
      <div class="bar">
        <h1>{run === undefined ? "Training" : `Training ${run.policy}`}</h1>
        {runs.value !== undefined && runs.value.length > 1 && (
          <label>
            run{" "}
            <select value={runId} onChange={(event) => setChosen(event.currentTarget.value)}>
              {runs.value.map((each) => (
                <option key={each.id} value={each.id}>
                  {new Date(each.createdAt).toLocaleString()}
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      {runs.value !== undefined && run === undefined && (
        <p class="quiet">Nothing is training. Calls and rollouts still appear below; start training with npm start.</p>
      )}
      {run !== undefined && <Run run={run} steps={steps.value ?? []} />}
      <Rollouts />
    </>
  );
}

const root = document.querySelector("#app");
if (root !== null) render(<App />, root);
