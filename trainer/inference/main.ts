/** The inference endpoint as a process: `node trainer/inference/main.ts --model DIR`. */

import { messageOf } from "#shared/errors.ts";
import { parseInferenceArguments } from "./config.ts";
import { startInferenceServer } from "./server.ts";

try {
  const server = await startInferenceServer(parseInferenceArguments(process.argv.slice(2)), {
    fatal: (error) => {
      process.stderr.write(`inference: ${error.message}\n`);
      process.exit(1);
    },
  });
  process.stdout.write(`inference listening on ${server.url}\n`);
  let isStopping = false;
  const stop = (): void => {
    // A second signal means now.
    if (isStopping) process.exit(1);
    isStopping = true;
    server.close().then(
      () => process.exit(0),
      (error: unknown) => {
        process.stderr.write(`inference: ${messageOf(error)}\n`);
        process.exit(1);
      },
    );
  };
  process.on("SIGTERM", stop);
  process.on("SIGINT", stop);
} catch (error) {
  process.stderr.write(`inference: ${messageOf(error)}\n`);
  process.exit(1);
}
