import { frameworks } from "./agents/openai-agents.ts";
import { describeFrameworks } from "./suite.ts";

describeFrameworks(frameworks);
