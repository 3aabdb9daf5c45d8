import type { CallView, RewardView, RolloutDetail } from "#shared/wire.ts";
import { api } from "./api.ts";
import { fixed, milliseconds } from "./format.ts";
import { usePolled } from "./poll.ts";
import { disposition } from "./rollouts.tsx";

/** One rollout as its calls: what the model was given, what it said token by token, what that earned. */
export function Rollout({ id }: { readonly id: string }) {
  const { value, error } = usePolled(() => api.readRollout(id), `rollout:${id}`, 5000);
  return (
    <section aria-label="rollout">
      <p>
        <a href="#/">← all rollouts</a>
      </p>
      {error !== undefined && <p class="problem">{error}</p>}
      {value !== undefined && <Detail detail={value} />}
    </section>
  );
}

function Detail({ detail }: { readonly detail: RolloutDetail }) {
  const { rollout, calls, rewards, batch } = detail;
  const shown = new Set<string>();
  return (
    <>
      <h1>
        Rollout <code>{rollout.id}</code>
      </h1>
      <dl class="facts">
        <Fact name="agent" value={rollout.agent} />
        <Fact name="mode" value={rollout.mode} />
        <Fact name="attempt" value={String(rollout.attempt)} />
        <Fact
          name="answered by"
          value={[...new Set(calls.map((call) => call.version ?? "a frozen model"))].join(", ") || "–"}
        />
        <Fact
          name="became"
          value={batch === null ? disposition(rollout) : `${disposition(rollout)} (batch of step ${batch.step + 1})`}
        />
        <Fact name="reward" value={fixed(rollout.reward, 3)} />
        {rollout.outcome !== null && (
          <Fact
            name="made of"
            value={`tools ${fixed(rollout.outcome.status)}, answer ${fixed(rollout.outcome.terminal)} (right ${rollout.outcome.correctness}, format ${rollout.outcome.format})`}
          />
        )}
        {rollout.error !== null && <Fact name="error" value={rollout.error} />}
      </dl>
      <p class="quiet">
        Tokens are shaded by how surprising they were to the policy that sampled them: <span class="key" /> darker is
        less likely. Point at one for its logprob.
      </p>
      <ol class="calls">
        {calls.map((call, index) => (
          <Call
            key={call.id}
            call={call}
            ordinal={index + 1}
            rewards={rewards.filter((reward) => reward.callId === call.id)}
            shown={shown}
          />
        ))}
      </ol>
      <h2>Rewards of the whole rollout</h2>
      <RewardList
        rewards={rewards.filter((reward) => reward.callId === null || !calls.some((call) => call.id === reward.callId))}
      />
      {rollout.result !== null && (
        <>
          <h2>Result</h2>
          <pre>{rollout.result}</pre>
        </>
      )}
    </>
  );
}

function Fact({ name, value }: { readonly name: string; readonly value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

interface CallProps {
  readonly call: CallView;
  readonly ordinal: number;
  readonly rewards: readonly RewardView[];
  /** Messages already on the page: each call repeats the conversation so far, which is shown once. */
  readonly shown: Set<string>;
}

function Call({ call, ordinal, rewards, shown }: CallProps) {
  const fresh = messagesOf(call.request).filter((message) => {
    const key = JSON.stringify(message);
    if (shown.has(key) || message.role === "assistant") return false;
    shown.add(key);
    return true;
  });
  return (
    <li class="call">
      <header>
        <strong>call {ordinal}</strong> {call.version !== null && <code>{call.version}</code>}
        <span class="quiet">
          {call.promptTokens} prompt + {call.completionTokens} sampled tokens · {milliseconds(call.latencyMs)} ·{" "}
          {call.finishReason ?? call.error ?? "unfinished"}
          {!call.trainable && " · not trainable"}
        </span>
      </header>
      {fresh.map((message, index) => (
        <div key={index} class={`message ${message.role}`}>
          <span class="role">{message.role}</span>
          <pre>{message.text}</pre>
        </div>
      ))}
      <div class="message assistant">
        <span class="role">sampled</span>
        <Tokens call={call} />
      </div>
      {rewards.length > 0 && <RewardList rewards={rewards} />}
      {call.error !== null && <p class="problem">{call.error}</p>}
    </li>
  );
}

function Tokens({ call }: { readonly call: CallView }) {
  const { responseTokens, responseTokenIds, behaviourLogprobs } = call;
  if (responseTokenIds === null) return <pre>{JSON.stringify(call.response, null, 2)}</pre>;
  return (
    <pre class="tokens">
      {responseTokenIds.map((tokenId, index) => {
        const logprob = behaviourLogprobs?.[index];
        const text = responseTokens?.[index] ?? `⟨${tokenId}⟩`;
        const probability = logprob === undefined ? 1 : Math.exp(logprob);
        return (
          <span
            key={index}
            title={`token ${tokenId}, logprob ${fixed(logprob, 3)}, probability ${fixed(probability, 3)}`}
            data-logprob={logprob}
            style={{ backgroundColor: `rgb(194 65 12 / ${((1 - probability) * 0.55).toFixed(3)})` }}
          >
            {text}
          </span>
        );
      })}
    </pre>
  );
}

function RewardList({ rewards }: { readonly rewards: readonly RewardView[] }) {
  if (rewards.length === 0) return <p class="quiet">none</p>;
  return (
    <ul class="rewards">
      {rewards.map((reward) => (
        <li key={reward.id} class={reward.value < 0 ? "bad" : "good"}>
          {reward.source} · {reward.name}{" "}
          <strong>{reward.value > 0 ? `+${fixed(reward.value)}` : fixed(reward.value)}</strong>
        </li>
      ))}
    </ul>
  );
}

interface Message {
  readonly role: string;
  readonly text: string;
}

/** The chat messages of a recorded request, whatever else is in it. */
function messagesOf(request: unknown): Message[] {
  if (request === null || typeof request !== "object" || !("messages" in request) || !Array.isArray(request.messages))
    return [];
  return request.messages.flatMap((message: unknown) => {
    if (message === null || typeof message !== "object" || !("role" in message)) return [];
    const content = "content" in message ? message.content : null;
    return [{ role: String(message.role), text: typeof content === "string" ? content : JSON.stringify(content) }];
  });
}
