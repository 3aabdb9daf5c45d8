import { beforeAll, describe, expect, test } from "vitest";
import { aglClient, type AglClient, type AglTarget, type Loose } from "./client.ts";

/**
 * The REST surface of Agent Lightning 1.0 but for its proxied calls (proxied.ts), asked of any server by its base URL and
 * key. Nothing is assumed of what the server holds already.
 */
export function describeAglRest(server: string, start: () => Promise<AglTarget>): void {
  describe(`${server}: Agent Lightning's REST surface`, () => {
    let agl: AglClient;
    beforeAll(async () => {
      agl = aglClient(await start());
    });
    const detailOf = async (id: string): Promise<Loose> => agl.must("GET", `/api/rollouts/${id}`);
    const endedSoFar = async (): Promise<number> =>
      (await agl.must("GET", "/api/rollouts/terminal?after=0&limit=1")).total_terminal;

    describe("access", () => {
      test.each([
        ["POST", "/api/rollouts"],
        ["GET", "/api/rollouts?state_in=queuing"],
        ["GET", "/api/rollouts/terminal"],
        ["GET", "/api/rollouts/x"],
        ["PATCH", "/api/rollouts/x"],
        ["DELETE", "/api/rollouts/x"],
        ["POST", "/api/rollouts/x/attempt/0/events"],
        ["GET", "/api/rollouts/x/events"],
        ["POST", "/api/models"],
        ["DELETE", "/api/models"],
        ["POST", "/proxy/pause"],
        ["POST", "/proxy/resume"],
        ["GET", "/proxy/state"],
        ["POST", "/proxy/rollout/x/attempt/0/mode/train/openai/v1/chat/completions"],
      ])("%s %s refuses a request without a key, and one with a wrong key", async (method, path) => {
        const body = method === "POST" || method === "PATCH" ? { body: {} } : {};
        for (const key of [null, "wrong"]) {
          const refused = await agl.ask(method, path, { ...body, key });
          expect(refused.status).toBe(401);
          expect(refused.body).toHaveProperty("detail");
        }
      });
    });

    describe("creating rollouts", () => {
      test("answers 201 with every rollout, in order and with its defaults", async () => {
        const answer = await agl.ask("POST", "/api/rollouts", {
          body: [
            { input: { prompt: "a" } },
            { input: "b", is_train: false, config: { timeout_seconds: 60 }, metadata: { batch_idx: 3, note: "n" } },
          ],
        });
        expect(answer.status).toBe(201);
        const [first, second, ...more]: Loose[] = answer.body as Loose;
        expect(more).toEqual([]);
        expect(first).toEqual({
          rollout_id: expect.stringMatching(/^[0-9a-f]{32}$/),
          input: { prompt: "a" },
          is_train: true,
          config: { timeout_seconds: 3600, local: null, k8s: null },
          metadata: { batch_idx: null, sample_idx_in_batch: null },
          status: {
            state: "queuing",
            k8s_job_name: null,
            last_attempt_id: null,
            error_message: null,
            version: 1,
            created_at: expect.any(Number),
            updated_at: first.status.created_at,
          },
        });
        // Seconds since the epoch.
        expect(Math.abs(first.status.created_at - Date.now() / 1000)).toBeLessThan(300);
        expect(second).toMatchObject({
          input: "b",
          is_train: false,
          config: { timeout_seconds: 60, local: null, k8s: null },
          metadata: { batch_idx: 3, sample_idx_in_batch: null, note: "n" },
        });
        expect(await detailOf(second.rollout_id)).toEqual({ rollout: second, attempts: [] });
      });

      test("keeps runner settings, whole", async () => {
        const [rollout] = await agl.must("POST", "/api/rollouts", [
          {
            input: null,
            config: { timeout_seconds: 5, local: { agent_class: "m:A" }, k8s: { job_template: "kind: Job" }, other: 1 },
          },
        ]);
        expect(rollout.input).toBeNull();
        expect(rollout.config).toEqual({
          timeout_seconds: 5,
          local: { agent_class: "m:A", env_map: {} },
          k8s: { job_template: "kind: Job" },
        });
      });

      test("an id of the client's is kept, and creating it again changes nothing", async () => {
        const rollout_id = `client-${crypto.randomUUID()}`;
        expect(await agl.create({ rollout_id, input: { prompt: "a" } })).toBe(rollout_id);
        await agl.move(rollout_id, "running");
        await agl.must("POST", `/api/rollouts/${rollout_id}/attempt/0/events`, {
          event_type: "reward",
          data: { value: 0.5 },
        });
        const again = await agl.ask("POST", "/api/rollouts", {
          body: [
            { rollout_id, input: { prompt: "other" } },
            { rollout_id, input: {} },
          ],
        });
        expect(again.status).toBe(201);
        expect(again.body).toMatchObject([
          { rollout_id, input: { prompt: "a" }, status: { state: "running", version: 2 } },
          { rollout_id, input: { prompt: "a" } },
        ]);
        expect((await detailOf(rollout_id)).attempts).toEqual(["0"]);
        expect(await agl.must("GET", `/api/rollouts/${rollout_id}/events`)).toHaveLength(1);
      });

      test("an empty list creates nothing", async () => {
        expect(await agl.ask("POST", "/api/rollouts", { body: [] })).toMatchObject({ status: 201, body: [] });
      });

      test.each([
        ["no JSON", { text: "{" }, ["body"], "json_invalid"],
        ["an object", { body: { rollouts: [] } }, ["body"], "list_type"],
        ["an item without an input", { body: [{ is_train: true }] }, ["body", 0, "input"], "missing"],
        ["an id that is no text", { body: [{ input: 1, rollout_id: 7 }] }, ["body", 0, "rollout_id"], "string_type"],
        [
          "a timeout that is no number",
          { body: [{ input: 1, config: { timeout_seconds: [] } }] },
          ["body", 0, "config", "timeout_seconds"],
          "int_type",
        ],
      ])("%s is refused with 422 and the place", async (_name, ask, loc, type) => {
        const refused = await agl.ask("POST", "/api/rollouts", ask);
        expect(refused.status).toBe(422);
        const [issue] = (refused.body as Loose).detail;
        expect(issue.type).toBe(type);
        if (type !== "json_invalid") expect(issue.loc).toEqual(loc);
      });

      test("nothing of a list is created where one item does not fit", async () => {
        const rollout_id = `half-${crypto.randomUUID()}`;
        expect((await agl.ask("POST", "/api/rollouts", { body: [{ rollout_id, input: 1 }, {}] })).status).toBe(422);
        expect((await agl.ask("GET", `/api/rollouts/${rollout_id}`)).status).toBe(404);
      });
    });

    describe("listing rollouts", () => {
      test("gives those in the wanted states, oldest first, as many as wanted", async () => {
        const ids = [await agl.create(), await agl.create(), await agl.create()];
        await agl.move(ids[1] ?? "", "running");
        const list = async (query: string): Promise<string[]> =>
          (await agl.must("GET", `/api/rollouts?${query}`)).map((rollout: Loose) => rollout.rollout_id);
        const own = async (query: string): Promise<string[]> =>
          (await list(`${query}&limit=2000`)).filter((id) => ids.includes(id));
        expect(await own("state_in=queuing&state_in=running")).toEqual(ids);
        expect(await own("state_in=running")).toEqual([ids[1]]);
        expect(await own("state_in=succeeded")).toEqual([]);
        expect(await list("state_in=queuing&limit=2")).toHaveLength(2);
        expect(await list("state_in=queuing&limit=0")).toEqual([]);
      });

      test.each(["", "?state_in=unknown", "?state_in=queuing&limit=x"])(
        "refuses the query %j with 422",
        async (query) => {
          const refused = await agl.ask("GET", `/api/rollouts${query}`);
          expect(refused.status).toBe(422);
          expect((refused.body as Loose).detail[0].loc[0]).toBe("query");
        },
      );
    });

    describe("moving rollouts on", () => {
      test("a legal change answers the rollout with a new version and time", async () => {
        const id = await agl.create();
        const before = (await detailOf(id)).rollout;
        const patched = await agl.must("PATCH", `/api/rollouts/${id}`, {
          status: { state: "running", k8s_job_name: "job-1", last_attempt_id: "a1" },
        });
        expect(patched).toEqual({
          ...before,
          status: {
            ...before.status,
            state: "running",
            k8s_job_name: "job-1",
            last_attempt_id: "a1",
            version: 2,
            updated_at: expect.any(Number),
          },
        });
        expect(patched.status.updated_at).toBeGreaterThanOrEqual(before.status.updated_at);
        expect((await detailOf(id)).rollout).toEqual(patched);
      });

      test("a change without a state keeps the state, and null clears a field", async () => {
        const id = await agl.create();
        await agl.must("PATCH", `/api/rollouts/${id}`, { status: { error_message: "e", k8s_job_name: "j" } });
        const patched = await agl.must("PATCH", `/api/rollouts/${id}`, { status: { k8s_job_name: null } });
        expect(patched.status).toMatchObject({ state: "queuing", k8s_job_name: null, error_message: "e", version: 3 });
      });

      test.each([{}, { status: null }, { status: {} }])("%j changes nothing", async (body) => {
        const id = await agl.create();
        expect((await agl.must("PATCH", `/api/rollouts/${id}`, body)).status.version).toBe(1);
      });

      const path: Readonly<Record<string, readonly string[]>> = {
        queuing: [],
        running: ["running"],
        succeeded: ["running", "succeeded"],
        failed: ["failed"],
      };
      const legal = new Set(["queuing running", "queuing failed", "running succeeded", "running failed"]);
      const states = Object.keys(path);
      test.each(states.flatMap((from) => states.map((to) => [from, to] as const)))("%s → %s", async (from, to) => {
        const id = await agl.create();
        await agl.move(id, ...(path[from] ?? []));
        const { version } = (await detailOf(id)).rollout.status;
        const answer = await agl.ask("PATCH", `/api/rollouts/${id}`, {
          body: { status: { state: to, error_message: "said" } },
        });
        const may = legal.has(`${from} ${to}`);
        expect(answer.status).toBe(may ? 200 : 409);
        if (!may) expect((answer.body as Loose).detail).toContain(id);
        // Refused, nothing of it is done.
        expect((await detailOf(id)).rollout.status).toMatchObject({
          state: may ? to : from,
          version: may ? version + 1 : version,
          error_message: may ? "said" : null,
        });
      });

      test.each([
        { status: { state: "cancelled" } },
        { status: { cancel_requested: true } },
        { state: "running" },
        { status: { state: "running" }, is_train: false },
        { status: [] },
        [],
      ])("%j is refused with 422 and changes nothing", async (body) => {
        const id = await agl.create();
        expect((await agl.ask("PATCH", `/api/rollouts/${id}`, { body })).status).toBe(422);
        expect((await detailOf(id)).rollout).toMatchObject({
          is_train: true,
          status: { state: "queuing", version: 1 },
        });
      });

      test("an unknown rollout is 404", async () => {
        const answer = await agl.ask("PATCH", "/api/rollouts/nobody", { body: { status: { state: "running" } } });
        expect(answer).toMatchObject({ status: 404, body: { detail: expect.stringContaining("nobody") } });
      });

      test("of two that end the same rollout at once one is told that it may not", async () => {
        const id = await agl.create();
        await agl.move(id, "running");
        const end = (state: string): Promise<{ status: number }> =>
          agl.ask("PATCH", `/api/rollouts/${id}`, { body: { status: { state } } });
        const answers = await Promise.all([end("succeeded"), end("failed"), end("succeeded")]);
        expect(answers.map(({ status }) => status).sort((a, b) => a - b)).toEqual([200, 409, 409]);
      });
    });

    describe("ended rollouts", () => {
      test("come in the order in which they ended, page by page", async () => {
        const start = await endedSoFar();
        const pending = await agl.create({ input: { data_id: "pending" } });
        const [a, b, c] = [
          await agl.create({ input: { data_id: "a" } }),
          await agl.create({ input: { instance_id: 12 }, is_train: false }),
          await agl.create({ input: "no name" }),
        ];
        for (const id of [b, a, c]) await agl.move(id, "running");
        await agl.move(a, "succeeded");
        await agl.move(c, "failed");
        await agl.move(b, "succeeded");
        const page = async (after: number, limit: number): Promise<Loose> =>
          agl.must("GET", `/api/rollouts/terminal?after=${after}&limit=${limit}`);
        expect(await page(start, 2)).toEqual({
          items: [
            { rollout_id: a, state: "succeeded", data_id: "a", is_train: true },
            { rollout_id: c, state: "failed", data_id: "", is_train: true },
          ],
          next_after: start + 2,
          total_terminal: start + 3,
        });
        expect(await page(start + 2, 2)).toEqual({
          items: [{ rollout_id: b, state: "succeeded", data_id: "12", is_train: false }],
          next_after: start + 3,
          total_terminal: start + 3,
        });
        expect(await page(start + 3, 2)).toEqual({ items: [], next_after: start + 3, total_terminal: start + 3 });
        // A limit below one counts as one.
        expect((await page(start, 0)).items).toHaveLength(1);
        const whole = await page(start, 1000);
        expect(whole.items.map((item: Loose) => item.rollout_id)).not.toContain(pending);
      });

      test("a cursor misses nothing where rollouts before it are deleted", async () => {
        const start = await endedSoFar();
        const [a, b] = [await agl.create(), await agl.create()];
        await agl.move(a, "failed");
        await agl.ask("DELETE", `/api/rollouts/${a}`);
        await agl.move(b, "failed");
        const page = await agl.must("GET", `/api/rollouts/terminal?after=${start}`);
        expect(page.items.map((item: Loose) => item.rollout_id)).toEqual([b]);
        expect(page.next_after).toBe(page.total_terminal);
        expect((await agl.must("GET", `/api/rollouts/terminal?after=${page.next_after}`)).items).toEqual([]);
      });

      test("a negative cursor is the beginning, and one beyond the end stays there", async () => {
        const total = await endedSoFar();
        expect((await agl.must("GET", "/api/rollouts/terminal?after=-5&limit=1")).next_after).toBe(Math.min(1, total));
        expect(await agl.must("GET", `/api/rollouts/terminal?after=${total + 9}`)).toEqual({
          items: [],
          next_after: total + 9,
          total_terminal: total,
        });
        expect((await agl.ask("GET", "/api/rollouts/terminal?after=x")).status).toBe(422);
      });
    });

    describe("deleting rollouts", () => {
      test("takes its events along, is no error twice, and frees its id", async () => {
        const rollout_id = `gone-${crypto.randomUUID()}`;
        await agl.create({ rollout_id });
        await agl.must("POST", `/api/rollouts/${rollout_id}/attempt/0/events`, { event_type: "note" });
        for (let time = 0; time < 2; time++) {
          expect(await agl.ask("DELETE", `/api/rollouts/${rollout_id}`)).toMatchObject({ status: 204, body: "" });
        }
        expect((await agl.ask("GET", `/api/rollouts/${rollout_id}`)).status).toBe(404);
        expect((await agl.ask("GET", `/api/rollouts/${rollout_id}/events`)).status).toBe(404);
        expect(await agl.create({ rollout_id, input: "again" })).toBe(rollout_id);
        expect(await detailOf(rollout_id)).toMatchObject({ rollout: { input: "again" }, attempts: [] });
        expect(await agl.must("GET", `/api/rollouts/${rollout_id}/events`)).toEqual([]);
      });
    });

    describe("events", () => {
      const post = (id: string, attempt: string, event_type: string, data?: unknown): Promise<Loose> =>
        agl.must("POST", `/api/rollouts/${id}/attempt/${attempt}/events`, {
          event_type,
          ...(data === undefined ? {} : { data }),
        });

      test("are answered with 200, their rollout, attempt and time", async () => {
        const id = await agl.create();
        const answer = await agl.ask("POST", `/api/rollouts/${id}/attempt/0/events`, {
          body: { event_type: "reward", data: { value: 0.7, extra: [1, { a: null }] }, other: 1 },
        });
        expect(answer.status).toBe(200);
        expect(answer.body).toEqual({
          event_type: "reward",
          rollout_id: id,
          attempt_id: "0",
          timestamp: expect.any(Number),
          data: { value: 0.7, extra: [1, { a: null }] },
        });
        expect(await agl.must("GET", `/api/rollouts/${id}/events`)).toEqual([answer.body]);
        expect((await post(id, "0", "note")).data).toEqual({});
      });

      test("are read in order, of one type where wanted, of the last attempt or attempt 0", async () => {
        const id = await agl.create();
        for (const [attempt, type] of [
          ["second", "a"],
          ["0", "b"],
          ["0", "c"],
          ["0", "b"],
          ["second", "d"],
        ] as const) {
          await post(id, attempt, type);
        }
        const types = async (query = ""): Promise<string[]> =>
          (await agl.must("GET", `/api/rollouts/${id}/events${query}`)).map((event: Loose) => event.event_type);
        expect(await types()).toEqual(["b", "c", "b"]);
        expect(await types("?event_type=b")).toEqual(["b", "b"]);
        expect(await types("?event_type=none")).toEqual([]);
        await agl.must("PATCH", `/api/rollouts/${id}`, { status: { last_attempt_id: "second" } });
        expect(await types()).toEqual(["a", "d"]);
        expect((await detailOf(id)).attempts).toEqual(["second", "0"]);
      });

      test("may follow a rollout's end", async () => {
        const id = await agl.create();
        await agl.move(id, "running", "succeeded");
        await post(id, "0", "reward", { value: 1 });
        expect(await agl.must("GET", `/api/rollouts/${id}/events`)).toHaveLength(1);
      });

      test("of an unknown rollout are 404, and what is no event is 422", async () => {
        const body = { event_type: "reward", data: {} };
        const missing = await agl.ask("POST", "/api/rollouts/nobody/attempt/0/events", { body });
        expect(missing).toMatchObject({ status: 404, body: { detail: expect.stringContaining("nobody") } });
        expect((await agl.ask("GET", "/api/rollouts/nobody/events")).status).toBe(404);
        const id = await agl.create();
        for (const bad of [{}, { event_type: 1 }, { event_type: "x", data: null }, { event_type: "x", data: [] }]) {
          expect((await agl.ask("POST", `/api/rollouts/${id}/attempt/0/events`, { body: bad })).status).toBe(422);
        }
      });

      test("as triplets are cut down, and of requests with one prompt the last is kept", async () => {
        const id = await agl.create();
        const request = (prompt: readonly number[], ids: readonly number[], extra: object = {}): Promise<Loose> =>
          post(id, "0", "model_request", {
            response: { prompt_token_ids: prompt, choices: [{ token_ids: ids }], usage: {} },
            server: { model: "m", version: 3, endpoint: "e" },
            ...extra,
          });
        await request([1, 2], [10]);
        await post(id, "0", "reward", { value: 0.5, source: "agent", message: "m" });
        await request([3, 4], [20], { http_status: 200, status: "ok", latency_ms: 5 });
        await post(id, "0", "note", { kept: "whole" });
        await request([1, 2], [30]);
        const all = await agl.must("GET", `/api/rollouts/${id}/events?format=triplet`);
        expect(all.map((event: Loose) => [event.event_type, event.data])).toEqual([
          ["reward", { value: 0.5, source: "agent" }],
          [
            "model_request",
            {
              prompt_token_ids: [3, 4],
              response_token_ids: [20],
              response_log_probs: null,
              server: { model: "m", version: 3 },
              http_status: 200,
              status: "ok",
            },
          ],
          ["note", { kept: "whole" }],
          [
            "model_request",
            {
              prompt_token_ids: [1, 2],
              response_token_ids: [30],
              response_log_probs: null,
              server: { model: "m", version: 3 },
            },
          ],
        ]);
        const raw = await agl.must("GET", `/api/rollouts/${id}/events?event_type=model_request`);
        expect(raw.map((event: Loose) => event.data.response.choices[0].token_ids)).toEqual([[10], [20], [30]]);
      });

      test.each([
        ["chat's logprobs", { content: [{ logprob: -0.5 }, { logprob: -1 }] }, [-0.5, -1]],
        ["completions' logprobs", { token_logprobs: [-0.25] }, [-0.25]],
        ["a token without one", { content: [{ logprob: -0.5 }, {}] }, null],
        ["one that is no number", { token_logprobs: [-0.5, null] }, null],
        ["no logprobs", null, null],
        ["another form", { other: [] }, null],
      ])("triplets: %s", async (_name, logprobs, wanted) => {
        const id = await agl.create();
        await post(id, "0", "model_request", {
          response: { choices: [{ prompt_token_ids: [7], token_ids: [8], logprobs }], error: { message: "e" } },
        });
        const [event] = await agl.must("GET", `/api/rollouts/${id}/events?format=triplet`);
        expect(event.data).toEqual({
          prompt_token_ids: [7],
          response_token_ids: [8],
          response_log_probs: wanted,
          server: { model: null, version: null },
          error: { message: "e" },
        });
      });
    });

    describe("models", () => {
      test("are registered, again with another version, and all removed", async () => {
        const model = { model: `m-${crypto.randomUUID()}`, endpoint: "http://127.0.0.1:1/v1" };
        expect(await agl.ask("POST", "/api/models", { body: [model] })).toMatchObject({
          status: 201,
          body: [{ ...model, version: 0 }],
        });
        expect((await agl.must("POST", "/api/models", [{ ...model, version: 3 }]))[0].version).toBe(3);
        expect(await agl.ask("DELETE", "/api/models")).toMatchObject({ status: 200, body: { status: "ok" } });
        expect(await agl.ask("DELETE", "/api/models")).toMatchObject({ status: 200, body: { status: "ok" } });
      });

      test.each([{ model: "m", endpoint: "e" }, [{ model: "m" }], [{ model: "m", endpoint: "e", version: "x" }]])(
        "%j is refused with 422",
        async (body) => {
          expect((await agl.ask("POST", "/api/models", { body })).status).toBe(422);
        },
      );
    });

    describe("the pause", () => {
      test("is said, seen and ended", async () => {
        await agl.must("POST", "/proxy/resume");
        const paused = await agl.must("POST", "/proxy/pause", { retry_after_seconds: 9, reason: "weights" });
        expect(paused).toEqual({ paused: true, retry_after_seconds: 9, reason: "weights", inflight: 0 });
        expect(await agl.must("GET", "/proxy/state")).toEqual(paused);
        // How long to wait outlives the pause; its reason does not.
        expect(await agl.must("POST", "/proxy/resume")).toEqual({ ...paused, paused: false, reason: null });
        expect(await agl.must("POST", "/proxy/pause", {})).toMatchObject({ retry_after_seconds: 5, reason: null });
        expect(await agl.must("POST", "/proxy/resume")).toMatchObject({ paused: false });
      });

      test("takes a body that fits", async () => {
        expect((await agl.ask("POST", "/proxy/pause", { body: { retry_after_seconds: "soon" } })).status).toBe(422);
        expect((await agl.ask("POST", "/proxy/pause")).status).toBe(422);
        expect((await agl.must("GET", "/proxy/state")).paused).toBe(false);
      });
    });

    test("health needs no key", async () => {
      expect(await agl.ask("GET", "/healthz", { key: null })).toMatchObject({ status: 200, body: { status: "ok" } });
    });

    test("what is not there is 404, another method 405, both with a detail", async () => {
      for (const [method, path, status] of [
        ["GET", "/api/nothing", 404],
        ["PUT", "/api/rollouts", 405],
        ["GET", "/api/models", 405],
        ["GET", "/proxy/pause", 405],
      ] as const) {
        const answer = await agl.ask(method, path);
        expect(answer.status).toBe(status);
        expect(answer.body).toHaveProperty("detail");
      }
    });
  });
}
