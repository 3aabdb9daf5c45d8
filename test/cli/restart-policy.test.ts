import { expect, test } from "vitest";
import { restartPolicy } from "../../cli/restart-policy.ts";

test("the pause doubles with each quick crash and the third quick crash gives up", () => {
  const decide = restartPolicy({ quickMs: 1000, firstDelayMs: 100 });
  expect(decide(10)).toEqual({ action: "restart", afterMs: 100 });
  expect(decide(10)).toEqual({ action: "restart", afterMs: 200 });
  expect(decide(10)).toEqual({ action: "give-up", quickCrashes: 3 });
});

test("a part that lived long enough starts afresh", () => {
  const decide = restartPolicy({ quickMs: 1000, firstDelayMs: 100 });
  decide(10);
  decide(10);
  expect(decide(5000)).toEqual({ action: "restart", afterMs: 100 });
  expect(decide(10)).toEqual({ action: "restart", afterMs: 100 });
  expect(decide(10)).toEqual({ action: "restart", afterMs: 200 });
});

test("the pause has a ceiling", () => {
  const decide = restartPolicy({ quickMs: 1000, quickLimit: 20, firstDelayMs: 100, maxDelayMs: 500 });
  const pauses = Array.from({ length: 6 }, () => decide(0)).map((decision) =>
    decision.action === "restart" ? decision.afterMs : -1,
  );
  expect(pauses).toEqual([100, 200, 400, 500, 500, 500]);
});
