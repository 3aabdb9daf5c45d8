import { builtinModules } from "node:module";
import { fileURLToPath } from "node:url";
import { build, type Plugin } from "esbuild";
import { convertV4MiniflareOptions, Log, LogLevel, Miniflare } from "miniflare";
import type { Framework, FrameworkRun } from "./framework.ts";

/** The frameworks of one module of agents/, run by a Worker that is started when the first of them is. */
export interface WorkerFrameworks {
  readonly frameworks: readonly Framework[];
  stop(): Promise<void>;
}

/** @param module its name in agents/, without the ending */
export function inWorkerd(module: string, frameworks: readonly Framework[]): WorkerFrameworks {
  let worker: Promise<Miniflare> | undefined;

  async function ask(asked: Asked): Promise<Outcome> {
    worker ??= start(module);
    const url = await (await worker).ready;
    const response = await fetch(url, { method: "POST", body: JSON.stringify(asked) });
    if (!response.ok) throw new Error(await response.text());
    return (await response.json()) as Outcome;
  }

  return {
    frameworks: frameworks.map(({ name, dialect, structured }, at) => ({
      name: `${name} in workerd`,
      dialect,
      async run({ calculator, ...run }) {
        const { answer, inputs } = await ask({ at, does: "run", run });
        for (const input of inputs) calculator(input);
        return String(answer);
      },
      ...(structured === undefined
        ? {}
        : { structured: async (run) => (await ask({ at, does: "structured", run })).answer }),
    })),
    async stop() {
      await (await worker)?.dispose();
    },
  };
}

interface Asked {
  /** Of the module's frameworks. */
  readonly at: number;
  readonly does: "run" | "structured";
  readonly run: Omit<FrameworkRun, "calculator">;
}

interface Outcome {
  readonly answer: unknown;
  /** What its calculator was called with. */
  readonly inputs: readonly { readonly a: number; readonly b: number }[];
}

/** Where the Worker's files would be. */
const ROOT = fileURLToPath(new URL(".", import.meta.url));

async function start(module: string): Promise<Miniflare> {
  const bundle = await build({
    stdin: {
      contents: `
        import { frameworks } from "./agents/${module}.ts";
        export default {
          async fetch(request) {
            try {
              const { at, does, run } = await request.json();
              const inputs = [];
              const calculator = (input) => (inputs.push(input), input.a + input.b);
              const answer = await frameworks[at][does]({ ...run, calculator });
              return Response.json({ answer, inputs });
            } catch (thrown) {
              return new Response(String(thrown?.stack ?? thrown), { status: 500 });
            }
          },
        };`,
      resolveDir: ROOT,
      loader: "ts",
    },
    bundle: true,
    write: false,
    outdir: ROOT,
    entryNames: "worker",
    format: "esm",
    loader: { ".wasm": "copy" },
    target: "es2024",
    // As wrangler does it for a Worker with nodejs_compat.
    conditions: ["workerd", "worker", "browser"],
    external: ["node:*", "cloudflare:*"],
    plugins: [nodeBuiltins],
    define: { "process.env.NODE_ENV": '"production"' },
    logLevel: "error",
  });
  return new Miniflare(
    convertV4MiniflareOptions({
      host: "127.0.0.1",
      port: 0,
      cf: false,
      log: new Log(LogLevel.ERROR),
      modulesRoot: ROOT,
      // The Worker itself is the first.
      modules: bundle.outputFiles
        .toSorted((a, b) => Number(b.path.endsWith(".js")) - Number(a.path.endsWith(".js")))
        .map(({ path, contents }) => ({
          type: path.endsWith(".wasm") ? ("CompiledWasm" as const) : ("ESModule" as const),
          path,
          contents,
        })),
      compatibilityDate: "2026-10-01",
      compatibilityFlags: ["nodejs_compat"],
    }),
  );
}

/** Node's modules under the one name that workerd has for them, also where CommonJS requires them. */
const nodeBuiltins: Plugin = {
  name: "node-builtins",
  setup(building) {
    const names = new Set(builtinModules);
    building.onResolve({ filter: /^(node:)?[a-z_]+(\/[a-z]+)*$/ }, ({ path, kind, namespace }) => {
      const name = path.replace(/^node:/, "");
      if (!names.has(name)) return undefined;
      return kind === "require-call" && namespace !== "required"
        ? { path: `node:${name}`, namespace: "required" }
        : { path: `node:${name}`, external: true };
    });
    building.onLoad({ filter: /.*/, namespace: "required" }, ({ path }) => ({
      contents: `import module_ from ${JSON.stringify(path)}; module.exports = module_;`,
      loader: "js",
    }));
  },
};
