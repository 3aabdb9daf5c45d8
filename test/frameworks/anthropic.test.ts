import { frameworks } from "./agents/anthropic.ts";
import { describeFrameworks } from "./suite.ts";

describeFrameworks(frameworks);
