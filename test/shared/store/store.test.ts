import { storeContract } from "../../contract/store.ts";
import { startTestStore } from "../../support/store.ts";

storeContract("libSQL server, one writing connection", async () => {
  const { db, writer, stop } = await startTestStore();
  return { db, writer, close: stop };
});
