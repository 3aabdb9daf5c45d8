import { agentWorker } from "../wrapper.ts";
import { bookFlight, type FlightInput } from "./agent.ts";

/** The flight agent as a Worker of its own. */
export default agentWorker((input, env) => {
  if (!isFlightInput(input)) {
    throw new TypeError('the flight agent wants {"message": text, "world": integer} as its input');
  }
  return bookFlight(input, env);
});

function isFlightInput(input: unknown): input is FlightInput {
  return (
    typeof input === "object" &&
    input !== null &&
    "message" in input &&
    typeof input.message === "string" &&
    "world" in input &&
    Number.isInteger(input.world)
  );
}
