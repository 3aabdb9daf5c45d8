import { FulgurError } from "#shared/errors.ts";
import type { RunEvent } from "#shared/run-events.ts";

/**
 * Places where a test has the trainer killed, as the machine could at any moment: `FULGUR_FAULT_AT="after edge.markTrained
 * in step 2"` in the environment of main.ts, the only one that reads it. Without it nothing is wrapped and a place is one
 * comparison.
 *
 * Places are what the trainer asks of its world, by part and function (`edge.claimBatch`, `engine.step`,
 * `inference.load`), and a few between two writes of a file system, which bear names of their own.
 */

const WHENS = ["before", "during", "after"] as const;
type When = (typeof WHENS)[number];

/** One death. */
interface Fault {
  readonly when: When;
  readonly place: string;
  /** Counted from 1; the beginning of a run belongs to step 1, its end to the step after the last. */
  readonly step: number;
  /** Which of the times that the place is come to within that step, counted from 1. */
  readonly pass: number;
}

let fault: Fault | undefined;
let step = 1;
let passes = 0;
/** Milliseconds that the place took when it was last come to. */
let lastMs = 2;

/**
 * @param text `WHEN PLACE in step N`, or `WHEN PLACE in step N, pass M`; undefined or empty arms nothing
 * @throws FulgurError ERR_CONFIG when it is of another form
 */
export function armFault(text: string | undefined): void {
  fault = text === undefined || text === "" ? undefined : parseFault(text);
}

/** A place between two things; the process ends here if it is the one that was asked for. */
export function faultPoint(place: string): void {
  if (fault !== undefined && comesTo("after", place)) die();
}

/**
 * Makes each function of a part a place, before it is called, while it works and after it has answered. `during` is half
 * as long into it as it took the time before, and at the latest when it is done.
 */
export function withFaultPoints<T extends object>(part: string, target: T): T {
  if (fault === undefined) return target;
  return new Proxy(target, {
    get(object, name) {
      const value: unknown = Reflect.get(object, name, object);
      if (typeof value !== "function") return value;
      const place = `${part}.${String(name)}`;
      return (...given: readonly unknown[]): unknown => {
        if (comesTo("before", place)) die();
        const isLast = comesTo("during", place);
        if (isLast) setTimeout(die, lastMs / 2);
        const startedAt = performance.now();
        const result: unknown = Reflect.apply(value, object, given);
        const leave = (): void => {
          if (fault?.place === place) lastMs = performance.now() - startedAt;
          if (isLast || comesTo("after", place)) die();
        };
        if (!(result instanceof Promise)) {
          leave();
          return result;
        }
        return result.then((answer: unknown) => {
          leave();
          return answer;
        });
      };
    },
  });
}

/** Tells in which step the run is. */
export function followSteps(event: RunEvent): void {
  if (event.event === "run") step = (event.resumed_from_step ?? 0) + 1;
  else if (event.event === "step") step = event.step + 1;
}

function parseFault(text: string): Fault {
  const found = /^(before|during|after) (\S+) in step ([1-9]\d*)(?:, pass ([1-9]\d*))?$/.exec(text);
  const when = WHENS.find((each) => each === found?.[1]);
  if (found === null || when === undefined) {
    throw new FulgurError(
      "ERR_CONFIG",
      `FULGUR_FAULT_AT is ${JSON.stringify(text)}, and "before|during|after PLACE in step N" was wanted, such as "after engine.step in step 2"; it is for tests: leave it unset`,
    );
  }
  return { when, place: found[2] ?? "", step: Number(found[3]), pass: Number(found[4] ?? 1) };
}

function comesTo(when: When, place: string): boolean {
  if (fault?.when !== when || fault.place !== place || fault.step !== step) return false;
  passes += 1;
  return passes === fault.pass;
}

/** No handler runs, nothing is flushed, no file is closed in order: what a power cut leaves but for the disk's own caches. */
function die(): never {
  process.kill(process.pid, "SIGKILL");
  throw new Error("a process outlived its SIGKILL");
}
