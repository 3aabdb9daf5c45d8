import { wycheproof } from "./wycheproof.ts";

wycheproof("Node");
