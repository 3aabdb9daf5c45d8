import { frameworks } from "./agents/ai-sdk.ts";
import { describeFrameworks } from "./suite.ts";

describeFrameworks(frameworks);
