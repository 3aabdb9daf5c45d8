import { frameworks } from "./agents/langgraph.ts";
import { describeFrameworks } from "./suite.ts";

describeFrameworks(frameworks);
