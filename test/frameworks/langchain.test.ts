import { frameworks } from "./agents/langchain.ts";
import { describeFrameworks } from "./suite.ts";

describeFrameworks(frameworks);
