import { wycheproof } from "./wycheproof.ts";

wycheproof("workerd");
