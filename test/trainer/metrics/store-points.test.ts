import { expect, it } from "vitest";
import { StorePoints } from "../../../trainer/metrics/store-points.ts";

it("adds to the store what was measured after the step's record, under the store's number of the step", async () => {
  const sent: unknown[] = [];
  const sink = new StorePoints(
    {
      putMetrics: async (run, points) => {
        sent.push([run, points]);
        return {};
      },
    },
    "r1",
  );
  await sink.open();
  await sink.write({ step: 3, time: 0, metrics: { seconds_publish: 0.2, entropy: 1, seconds_step: 2 } });
  // A paused step has nothing of the kind.
  await sink.write({ step: 4, time: 0, metrics: { entropy: 1 } });
  await sink.close();
  expect(sent).toEqual([
    [
      "r1",
      [
        { step: 2, name: "seconds_publish", value: 0.2 },
        { step: 2, name: "seconds_step", value: 2 },
      ],
    ],
  ]);
});
