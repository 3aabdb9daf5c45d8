import type { SupervisorEvent } from "../supervisor.ts";
import type { Style } from "./style.ts";

/** What the supervisor did, as a line. */
export function supervisorLine(event: SupervisorEvent, style: Style): string {
  switch (event.type) {
    case "ended":
      return `${style.red("✗")} the ${event.part} ${event.how}; starting it again in ${(event.retryMs / 1000).toFixed(1)} s`;
    case "unresponsive":
      return `${style.red("✗")} the ${event.part} does not answer (${event.why}); killing it to start it again`;
    case "restarted":
      return `${style.green("✓")} the ${event.part} runs again, ${(event.ms / 1000).toFixed(1)} s later`;
  }
}
