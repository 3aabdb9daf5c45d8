import { readText } from "../body.ts";
import { ask, broken, checkModel, record, routeOf, type Call, type OwnPath, type ProxyDeps } from "../call.ts";
import type { Dialect, DialectRequest } from "../dialect.ts";
import { handle, type Answered } from "../handle.ts";
import { readModel } from "../parse-request.ts";
import { providerCall } from "../provider/provider.ts";
import { streamed } from "../stream.ts";
import { answerOf, headOf } from "./answer.ts";
import { storedHistory } from "./history.ts";
import { translating } from "./stream.ts";
import { readAnswer, takeWhole } from "../whole-answer.ts";

/**
 * A call in any dialect but chat. In front of a policy its request becomes one for inference, and what that answers becomes
 * the dialect's; a frozen provider is given the request as it came.
 */
export async function translatedCall(
  deps: ProxyDeps,
  { request, dialect }: { readonly request: Request; readonly dialect: Dialect },
): Promise<Response> {
  const startedAt = deps.now();
  const requestText = await readText(request, deps);
  const { body, model } = readModel(requestText);
  const caller = await deps.callerOf(request, body);
  const route = await routeOf(deps, caller, model);
  const { name } = dialect;
  if (route.kind === "provider") {
    return providerCall(deps, caller, { request, requestText, dialect: name, body, route, startedAt });
  }
  const { db, writer } = deps;
  const { tenantId } = caller.principal;
  const { rolloutId } = caller.rollout;
  const parsed = await dialect.parse(requestText, storedHistory({ db, writer, tenantId, rolloutId }));
  const asked = { request, requestText, dialect: name, chat: parsed.chat, body, route, startedAt };
  return handle(deps, caller, asked, (call) =>
    parsed.chat.stream === true ? streamedAnswer(call, parsed) : wholeAnswer(call, parsed),
  );
}

/** Requests that inference answers on a path of their own say so. */
type Parsed = DialectRequest & { readonly own?: OwnPath };

async function wholeAnswer(call: Call, parsed: Parsed): Promise<Answered> {
  const { capture } = call;
  const answer = await ask(call, readAnswer, parsed.own);
  const choice = takeWhole(capture, parsed.own?.asChat(answer) ?? answer);
  const body = parsed.whole(answerOf(call, choice));
  const headers = await record(call, { httpStatus: 200, error: null });
  return { response: Response.json(body, { headers }) };
}

async function streamedAnswer(call: Call, parsed: Parsed): Promise<Answered> {
  const { capture } = call;
  const upstream = await ask(call, (response) => response, parsed.own);
  const rewriter = translating(capture, parsed.stream(headOf(call)), {
    ...(parsed.own === undefined ? {} : { asChat: (chunk) => parsed.own?.asChat(chunk) ?? chunk }),
    settle(ended) {
      if (!ended) throw broken(capture, "its stream ended without [DONE]");
      checkModel(capture);
      if (capture.finishReason === null) throw broken(capture, "its stream ended without a finish_reason");
    },
  });
  return streamed(call, upstream, rewriter);
}
