import { frameworks } from "./agents/openai.ts";
import { describeFrameworks } from "./suite.ts";

describeFrameworks(frameworks);
