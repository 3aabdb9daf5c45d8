import { describe, expect, it } from "vitest";
import { oneAsker } from "../../edge/one-asker.ts";

/** A cache of one value and a question that is answered when it is told to. */
function question() {
  let cached: string | undefined;
  let asked = 0;
  const answers: PromiseWithResolvers<string>[] = [];
  return {
    asked: () => asked,
    answers,
    options: (now = 0) => ({
      known: () => cached,
      async ask() {
        asked++;
        const answer = Promise.withResolvers<string>();
        answers.push(answer);
        return (cached = await answer.promise);
      },
      now,
    }),
  };
}

describe("oneAsker", () => {
  it("asks once for all that come meanwhile, and not at all where it is known", async () => {
    const one = oneAsker();
    const { asked, answers, options } = question();
    const all = Array.from({ length: 20 }, () => one.ask("key", options()));
    expect(asked()).toBe(1);
    answers[0]?.resolve("yes");
    expect(await Promise.all(all)).toEqual(Array.from({ length: 20 }, () => "yes"));
    expect(await one.ask("key", options())).toBe("yes");
    expect(asked()).toBe(1);
  });

  it("asks about other keys beside it", async () => {
    const one = oneAsker();
    const [a, b] = [question(), question()];
    const both = [one.ask("a", a.options()), one.ask("b", b.options())];
    a.answers[0]?.resolve("of a");
    b.answers[0]?.resolve("of b");
    expect(await Promise.all(both)).toEqual(["of a", "of b"]);
  });

  it("lets the next one ask where a question failed, and tells only its own caller", async () => {
    const one = oneAsker();
    const { asked, answers, options } = question();
    const first = one.ask("key", options());
    const second = one.ask("key", options());
    answers[0]?.reject(new Error("away"));
    await expect(first).rejects.toThrow("away");
    await expect.poll(asked).toBe(2);
    answers[1]?.resolve("back");
    expect(await second).toBe("back");
  });

  it("waits no longer for one that has not been heard of for two seconds", async () => {
    const one = oneAsker();
    const { asked, answers, options } = question();
    void one.ask("key", options(0));
    const later = one.ask("key", options(2000));
    expect(asked()).toBe(2);
    answers[1]?.resolve("mine");
    expect(await later).toBe("mine");
  });
});
