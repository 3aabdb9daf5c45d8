import { frameworks } from "./agents/mastra.ts";
import { describeFrameworks } from "./suite.ts";

describeFrameworks(frameworks);
