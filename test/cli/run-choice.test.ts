import { expect, test } from "vitest";
import { chooseRun, type CurrentRun } from "../../cli/run-choice.ts";

const run: CurrentRun = { run_id: "ru_1", task: "flight", settings: { seed: "1", steps: "60" } };
const bare = { task: "flight", settings: {}, isNew: false };

test("the first start begins a run", () => {
  expect(chooseRun(bare, undefined, false)).toEqual({ type: "new" });
});

test("a start without flags goes on with the unfinished run, with the flags that it began with", () => {
  expect(chooseRun(bare, run, false)).toEqual({ type: "resume", run });
});

test("the same flags go on with the unfinished run too", () => {
  expect(chooseRun({ ...bare, settings: { seed: "1" } }, run, false)).toEqual({ type: "resume", run });
});

test.each([
  { settings: { seed: "2" }, says: "was begun with --seed 1" },
  { settings: { groups: "4" }, says: "was begun with no --groups" },
])("other flags than the unfinished run's are an error: $says", ({ settings, says }) => {
  expect(() => chooseRun({ ...bare, settings }, run, false)).toThrow(says);
  expect(() => chooseRun({ ...bare, settings }, run, false)).toThrow("ru_1");
});

test("--new leaves an unfinished run", () => {
  expect(chooseRun({ task: "flight", settings: { seed: "2" }, isNew: true }, run, false)).toEqual({ type: "new" });
});

test("a finished run is shown again, unless other flags ask for another", () => {
  expect(chooseRun(bare, run, true)).toEqual({ type: "finished", run });
  expect(chooseRun({ ...bare, settings: { seed: "1" } }, run, true)).toEqual({ type: "finished", run });
  expect(chooseRun({ ...bare, settings: { seed: "2" } }, run, true)).toEqual({ type: "new" });
  expect(chooseRun({ ...bare, task: "calc" }, run, true)).toEqual({ type: "new" });
});
