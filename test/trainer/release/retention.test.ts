import { mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { versionAt } from "../../../trainer/batch/staleness.ts";
import { keptSteps, outlived, pruneVersions, type VersionRetention } from "../../../trainer/release/retention.ts";
import { bestVersion } from "../../../trainer/step-metrics.ts";

/** A run that began at version 3 of its policy and made 5 to 14, each of which earned a little more than the one before. */
const lineage = { base: 3, made: [5, 6, 7, 8, 9, 10, 11, 12, 13, 14] };
const state = {
  ...{ step: 10, lineage },
  rewards: [3, 5, 6, 7, 8, 9, 10, 11, 12, 13].map((version) => ({ version, sum: version, count: 1 })),
};
const retention: VersionRetention = { state, keep: 2, maxStaleness: 0 };
const onDisk = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];

describe("outlived", () => {
  it("leaves the newest, the best that is settled, and all that is not the run's", () => {
    // 14 and 13 are the newest; of those whose neighbours have all their rewards, 12 earned most.
    expect(outlived(onDisk, retention)).toEqual([5, 6, 7, 8, 9, 10, 11]);
    expect(outlived(onDisk, { ...retention, keep: 16 })).toEqual([]);
  });

  it("leaves what other runs made between its own versions", () => {
    const between = { ...state, lineage: { base: 3, made: [5, 6, 9, 10, 11, 12, 13, 14] }, step: 8 };
    expect(outlived(onDisk, { ...retention, state: between })).toEqual([5, 6, 9, 10, 11]);
  });

  it("leaves the versions that may still sample a batch, however few are to be kept", () => {
    expect(outlived(onDisk, { ...retention, keep: 1, maxStaleness: 3 })).toEqual([5, 6, 7, 8]);
  });

  it("has nothing to say before there is anything of the run, and of a number that is ahead of it", () => {
    const begun = { step: 0, lineage: { base: 3, made: [] }, rewards: [] };
    expect(outlived([0, 1, 2, 3, 4, 99], { ...retention, state: begun })).toEqual([]);
    expect(outlived([...onDisk, 99], retention)).not.toContain(99);
  });

  it("never removes what turns out to be the best at the end, whatever the rewards and the staleness", () => {
    const run = fc.record({
      means: fc.array(fc.integer({ min: 0, max: 6 }), { minLength: 2, maxLength: 24 }),
      // Of each version: how late its last rewards come, as a part of the bound.
      late: fc.array(fc.nat({ max: 4 }), { minLength: 24, maxLength: 24 }),
      maxStaleness: fc.nat({ max: 4 }),
      keep: fc.integer({ min: 1, max: 4 }),
    });
    fc.assert(
      fc.property(run, ({ means, late, maxStaleness, keep }) => {
        const steps = means.length;
        let disk = [0];
        for (let step = 1; step <= steps; step += 1) {
          disk = [...disk, step];
          disk = without(disk, outlived(disk, { state: at(step), keep, maxStaleness }));
        }
        const best = bestVersion(at(steps).rewards);
        expect(disk).toContain(best);
        expect(disk.length).toBeLessThanOrEqual(Math.max(keep, maxStaleness + 2) + 2);

        /** Half of a version's rewards come with the step after it, the rest, which may differ, up to K steps later. */
        function at(step: number): VersionRetention["state"] {
          const rewards = means.slice(0, step).map((mean, version) => {
            const isWhole = step > version + Math.min(late[version] ?? 0, maxStaleness);
            return { version, sum: isWhole ? 2 * mean : 6 - mean, count: isWhole ? 2 : 1 };
          });
          return { step, lineage: { base: 0, made: Array.from({ length: step }, (_, made) => made + 1) }, rewards };
        }
      }),
    );
  });
});

describe("keptSteps", () => {
  it("are the newest and that of the best version which is there", () => {
    const steps = [0, 4, 8, 9, 10];
    // The version of step 4 is 8, of step 0 the base; none of the better ones has its checkpoint still.
    expect(versionAt(lineage, 4)).toBe(8);
    expect(keptSteps(steps, { ...state, rewards: state.rewards.slice(0, 6) }, 1)).toEqual([4, 10]);
    expect(keptSteps(steps, { ...state, rewards: [] }, 2)).toEqual([9, 10]);
    expect(keptSteps([10], state, 5)).toEqual([10]);
    // A step whose version is not published yet is the newest.
    const unpublished = { ...state, step: 11, rewards: state.rewards.slice(0, 6) };
    expect(keptSteps([...steps, 11], unpublished, 1)).toEqual([4, 11]);
  });
});

describe("pruneVersions", () => {
  let versions: string;
  beforeEach(async () => {
    versions = await mkdtemp(join(tmpdir(), "fulgur-retention-"));
    for (const name of [...onDisk.map(String), "15.writing", "notes", "4.removing"]) {
      await mkdir(join(versions, name));
      await writeFile(join(versions, name, "file"), "f");
    }
  });
  afterEach(() => rm(versions, { recursive: true, force: true }));

  it("removes the folders, and what a crash left of an earlier removal; repeated it does nothing", async () => {
    for (let time = 0; time < 2; time += 1) {
      await pruneVersions(versions, retention, async (numbers) => numbers);
      expect((await readdir(versions)).toSorted()).toEqual(
        ["0", "1", "12", "13", "14", "15.writing", "2", "3", "4", "notes"].toSorted(),
      );
    }
  });

  it("removes no folder before its version is retired, and none that is in use", async () => {
    const asked: (readonly number[])[] = [];
    const before = await readdir(versions);
    const failing = pruneVersions(versions, retention, async (numbers) => {
      asked.push(numbers);
      throw new Error("the edge is away");
    });
    await expect(failing).rejects.toThrow("the edge is away");
    expect(asked).toEqual([[5, 6, 7, 8, 9, 10, 11]]);
    expect(await readdir(versions)).toEqual(before);
    // 6 and 9 are pinned; 3, which is nobody's to remove, is said to be retired all the same.
    await pruneVersions(versions, retention, async () => [3, 5, 7, 8, 10, 11]);
    expect(
      (await readdir(versions))
        .filter((name) => /^\d+$/.test(name))
        .map(Number)
        .toSorted((a, b) => a - b),
    ).toEqual([0, 1, 2, 3, 4, 6, 9, 12, 13, 14]);
  });
});

function without(numbers: readonly number[], removed: readonly number[]): number[] {
  return numbers.filter((each) => !removed.includes(each));
}
