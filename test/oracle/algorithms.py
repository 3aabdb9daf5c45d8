"""Writes fixtures/algorithms.json: credits, advantages and losses by PyTorch in float64, for trainer/{credit,advantage,loss}.

Run: python test/oracle/algorithms.py [--check]; --check compares with the committed file instead of writing it.
Everything is written as the papers have it, with tensors over whole sequences, and gradients are left to autograd; the
TypeScript works token by token with derivatives of its own.
"""

import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

PATH = Path(__file__).parent / "fixtures" / "algorithms.json"
TRUNCATED = {"type": "truncated", "cap": 2}


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


# Rows: two groups of two rollouts; rollout 1 has two rows, and rows hold one to three sequences. Advantages are equal
# over a sequence, as credit makes them; behaviour, proximal, policy and reference differ everywhere.
LAYOUT = [
    {"rollout": 0, "group": 0, "sequences": [(1, 3, 0), (2, 2, 1)]},
    {"rollout": 1, "group": 0, "sequences": [(2, 4, 0)]},
    {"rollout": 1, "group": 0, "sequences": [(1, 2, 1), (1, 1, 2), (3, 5, 3)]},
    {"rollout": 2, "group": 1, "sequences": [(2, 6, 0)]},
    {"rollout": 3, "group": 1, "sequences": [(1, 2, 0), (1, 3, 1)]},
]


def make_rows(generator):
    rows = []
    for at, layout in enumerate(LAYOUT):
        mask, sequence, advantages = [], [], []
        for prompt, response, index in layout["sequences"]:
            drawn = torch.randn(1, generator=generator, dtype=torch.float64).item()
            mask += [0] * prompt + [1] * response
            sequence += [-1] * prompt + [index] * response
            advantages += [0.0] * prompt + [drawn] * response
        length = len(mask)
        draw = lambda scale: torch.randn(length, generator=generator, dtype=torch.float64) * scale
        behaviour = -torch.rand(length, generator=generator, dtype=torch.float64) * 3 - 0.3
        # Row 1 was sampled by a policy far away: the one that a sequence mask takes out.
        proximal = (behaviour + draw(0.4) + (0.9 if at == 1 else 0.0)).clamp(max=-0.01)
        rows.append(
            {
                "rollout": layout["rollout"],
                "group": layout["group"],
                "sequenceOfToken": sequence,
                "lossMask": mask,
                "advantages": advantages,
                "behaviourLogprobs": behaviour.tolist(),
                "proximalLogprobs": proximal.tolist(),
                "policyLogprobs": (proximal + draw(0.5)).clamp(max=-0.01).tolist(),
                "referenceLogprobs": (behaviour + draw(0.4)).clamp(max=-0.01).tolist(),
                "entropy": (torch.rand(length, generator=generator, dtype=torch.float64) * 2).tolist(),
            }
        )
    return rows


LOSSES = [
    {"type": "reinforce", "importance": {"type": "ratio"}, "aggregation": "sequence-sum", "responseTokens": 1},
    {"type": "reinforce", "importance": TRUNCATED, "klCoefficient": 0.2, "klEstimator": "k1", "aggregation": "token-mean"},
    {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.28, "importance": {"type": "ratio"}, "aggregation": "sequence-mean"},
    {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.2, "importance": TRUNCATED, "klCoefficient": 0.3,
     "klEstimator": "k2", "aggregation": "rollout-mean"},
    {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.2, "importance": {"type": "none"}, "aggregation": "sequence-sum",
     "responseTokens": 64},
    {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.28, "importance": {"type": "sequence-mask", "cap": 1.5, "low": 0.7,
     "high": 1.6}, "klCoefficient": 0.1, "klEstimator": "k3", "aggregation": "sequence-mean"},
    {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.28, "importance": {"type": "sequence-mask", "cap": 2, "low": 0.7,
     "high": 1.6}, "aggregation": "token-mean", "entropyBonus": 0.02},
    {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.28, "importance": TRUNCATED, "aggregation": "batch-mean",
     "tokensPerUpdate": 19.5},
    {"type": "dual-clip", "clipLow": 0.2, "clipHigh": 0.2, "bound": 3, "importance": TRUNCATED, "aggregation": "token-mean"},
    {"type": "dual-clip", "clipLow": 0.2, "clipHigh": 0.2, "bound": 1.3, "importance": {"type": "ratio"},
     "aggregation": "rollout-mean"},
    {"type": "gspo", "clipLow": 3e-4, "clipHigh": 4e-4, "importance": {"type": "ratio"}, "aggregation": "sequence-mean"},
    {"type": "gspo", "clipLow": 0.3, "clipHigh": 0.4, "importance": {"type": "truncated", "cap": 1.1}, "klCoefficient": 0.1,
     "klEstimator": "k3", "aggregation": "sequence-mean"},
    {"type": "cispo", "clipLow": 1, "clipHigh": 4, "importance": {"type": "ratio"}, "aggregation": "token-mean"},
    {"type": "cispo", "clipLow": 0.3, "clipHigh": 0.4, "importance": TRUNCATED, "aggregation": "token-mean"},
    {"type": "sft", "imitate": "better", "aggregation": "token-mean"},
    {"type": "sft", "imitate": "all", "klCoefficient": 0.05, "klEstimator": "k3", "aggregation": "sequence-mean"},
    {"type": "dpo", "klCoefficient": 0.3},
]


class Sequence:
    """One LLM answer of a row: its tokens' tensors, cut out of those that gradients are taken to."""

    def __init__(self, row, policy, entropy, index):
        at = [t for t, s in enumerate(row["sequenceOfToken"]) if s == index]
        self.rollout, self.group = row["rollout"], row["group"]
        self.policy, self.entropy = policy[at], entropy[at]
        take = lambda key: tensor(row[key])[at]
        self.advantage, self.behaviour = take("advantages"), take("behaviourLogprobs")
        self.proximal, self.reference = take("proximalLogprobs"), take("referenceLogprobs")

    def __len__(self):
        return len(self.policy)


def clip_term(ratio, advantage, config):
    clipped = torch.clamp(ratio, 1 - config["clipLow"], 1 + config["clipHigh"])
    return -torch.minimum(ratio * advantage, clipped * advantage)


def weight_of(log_ratio, importance):
    if importance["type"] == "none":
        return torch.ones_like(log_ratio)
    return torch.exp(log_ratio).clamp(max=importance.get("cap", math.inf)).detach()


def surrogate(s, config):
    """Terms of a sequence's tokens, before the KL term and the entropy bonus."""
    kind = config["type"]
    if kind == "sft":
        kept = torch.ones_like(s.advantage) if config["imitate"] == "all" else (s.advantage > 0).double()
        return -kept * s.policy
    importance = config["importance"]
    if kind == "reinforce":
        return -weight_of(s.policy - s.behaviour, importance) * s.advantage * s.policy
    anchor = s.behaviour if importance["type"] == "ratio" else s.proximal
    if kind == "gspo":
        # The sequence form: one ratio and one term for the sequence, which its tokens share.
        ratio = torch.exp((s.policy - anchor).sum() / len(s))
        weight = weight_of((anchor - s.behaviour).sum() / len(s), importance)
        return (weight * clip_term(ratio, s.advantage[0], config)).expand(len(s))
    ratio = torch.exp(s.policy - anchor)
    weight = weight_of(anchor - s.behaviour, importance)
    if kind == "cispo":
        clipped = torch.clamp(ratio, 1 - config["clipLow"], 1 + config["clipHigh"]).detach()
        return -weight * clipped * s.advantage * s.policy
    term = clip_term(ratio, s.advantage, config)
    if kind == "dual-clip":
        floor = -config["bound"] * s.advantage
        term = torch.where(s.advantage < 0, torch.minimum(term, floor), term)
    return weight * term


def kl(s, estimator):
    log_ratio = s.policy - s.reference
    if estimator == "k1":
        return log_ratio
    return log_ratio**2 / 2 if estimator == "k2" else torch.exp(-log_ratio) + log_ratio - 1


def token_loss(sequences, config):
    importance = config.get("importance", {})
    if importance.get("type") == "sequence-mask":
        mean = lambda s: torch.exp((s.proximal - s.behaviour).mean()).item()
        sequences = [s for s in sequences if importance["low"] <= mean(s) <= importance["high"]]
    terms = []
    for s in sequences:
        term = surrogate(s, config) - config.get("entropyBonus", 0) * s.entropy
        if config.get("klCoefficient", 0) > 0:
            term = term + config["klCoefficient"] * kl(s, config["klEstimator"])
        terms.append(term)
    how = config["aggregation"]
    if how in ("token-mean", "batch-mean"):
        tokens = sum(len(s) for s in sequences)
        return torch.cat(terms).sum() / config.get("tokensPerUpdate", tokens)
    if how == "sequence-mean":
        return torch.stack([term.mean() for term in terms]).mean()
    if how == "sequence-sum":
        return torch.stack([term.sum() / config["responseTokens"] for term in terms]).mean()
    rollouts = sorted({s.rollout for s in sequences})
    own = lambda rollout: torch.cat([term for s, term in zip(sequences, terms) if s.rollout == rollout])
    return torch.stack([own(rollout).mean() for rollout in rollouts]).mean()


def dpo(sequences, beta):
    losses = []
    for group in sorted({s.group for s in sequences}):
        rollouts = sorted({s.rollout for s in sequences if s.group == group})
        of = lambda rollout: [s for s in sequences if s.rollout == rollout]
        score = lambda rollout: torch.cat([s.advantage for s in of(rollout)]).mean().item()
        log_ratio = lambda rollout: torch.cat([s.policy - s.reference for s in of(rollout)]).sum()
        chosen, rejected = max(rollouts, key=score), min(rollouts, key=score)
        losses.append(-F.logsigmoid(beta * (log_ratio(chosen) - log_ratio(rejected))))
    return torch.stack(losses).mean()


def evaluate_loss(rows, config):
    policies = [tensor(r["policyLogprobs"]).requires_grad_() for r in rows]
    entropies = [tensor(r["entropy"]).requires_grad_() for r in rows]
    sequences = [
        Sequence(row, policy, entropy, index)
        for row, policy, entropy in zip(rows, policies, entropies)
        for index in sorted(set(row["sequenceOfToken"]) - {-1})
    ]
    loss = dpo(sequences, config["klCoefficient"]) if config["type"] == "dpo" else token_loss(sequences, config)
    loss.backward()
    grad = lambda leaf: (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad).tolist()
    tokens = config.get("tokensPerUpdate")
    return {
        "config": {key: value for key, value in config.items() if key != "tokensPerUpdate"},
        **({} if tokens is None else {"tokensPerUpdate": tokens}),
        "loss": loss.item(),
        "dLogprobs": [grad(policy) for policy in policies],
        "dEntropy": [grad(entropy) for entropy in entropies],
    }


def make_credits(generator):
    """Returns by a matrix of discounts: G = D·r with D[t, u] = γ^(u − t) for u ≥ t."""
    cases = []
    for T, gamma, weight in ((1, 0.9, 1.0), (4, 0.97, 1.0), (6, 1.0, 0.5), (5, 0.0, 2.0)):
        rewards = torch.randn(T, generator=generator, dtype=torch.float64)
        terminal, total = torch.randn(2, generator=generator, dtype=torch.float64).tolist()
        distance = torch.arange(T)[None, :] - torch.arange(T)[:, None]
        discounts = torch.where(distance >= 0, tensor(gamma) ** distance.clamp(min=0), tensor(0.0))
        last = F.one_hot(torch.tensor(T - 1), T).double()
        cases.append(
            {
                "gamma": gamma,
                "terminalWeight": weight,
                "rewards": {"total": total, "terminal": terminal, "intermediate_T": rewards.tolist()},
                "identical": (torch.ones(T, dtype=torch.float64) * total).tolist(),
                "discounted": (discounts @ (last * total)).tolist(),
                "air": (discounts @ (rewards + weight * terminal * last)).tolist(),
            }
        )
    return cases


def make_overlong():
    lengths = [0, 1, 99, 100, 101, 150, 199, 200, 5000]
    position = (tensor(lengths) - 100) / 100
    return {"maxTokens": 200, "cacheTokens": 100, "lengths": lengths, "punishments": (-position.clamp(0, 1)).tolist()}


def make_groups(generator):
    """Credits of a group's rollouts of unequal numbers of transitions, and what each method makes of them."""
    cases = []
    for lengths in ((1, 1, 1, 1), (2, 1, 3), (1, 4), (3, 3, 1, 2, 1)):
        credits = [torch.randn(T, generator=generator, dtype=torch.float64) for T in lengths]
        means = torch.stack([c.mean() for c in credits])
        others = [torch.cat([means[:i], means[i + 1 :]]).mean() for i in range(len(means))]
        cases.append(
            {
                "credits": [c.tolist() for c in credits],
                "group-mean": [(c - means.mean()).tolist() for c in credits],
                "group-mean-std": [((c - means.mean()) / (means.std() + 1e-6)).tolist() for c in credits],
                "leave-one-out": [(c - other).tolist() for c, other in zip(credits, others)],
            }
        )
    return cases


def make_batch(rows):
    """REINFORCE++ over the batch: the KL penalty to the end of each sequence, then one mean and one spread."""
    penalised, flat = [], []
    for row in rows:
        log_ratio = tensor(row["policyLogprobs"]) - tensor(row["referenceLogprobs"])
        sequence = torch.tensor(row["sequenceOfToken"])
        out = tensor(row["advantages"])
        for index in sorted(set(row["sequenceOfToken"]) - {-1}):
            own = sequence == index
            out[own] -= 0.05 * log_ratio[own].flip(0).cumsum(0).flip(0)
        penalised.append(out)
        flat.append(out[sequence >= 0])
    every = torch.cat(flat)
    normal = [(p - every.mean()) / torch.sqrt(every.var(unbiased=True) + 1e-8) for p in penalised]
    mask = [tensor(row["lossMask"]) for row in rows]
    return {
        "coefficient": 0.05,
        "estimator": "k1",
        "epsilon": 1e-8,
        "penalised": [p.tolist() for p in penalised],
        "whitened": [(n * m).tolist() for n, m in zip(normal, mask)],
    }


def close(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b))
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return a == b


def main():
    generator = torch.Generator().manual_seed(11)
    rows = make_rows(generator)
    made = {
        "torch": torch.__version__.split("+")[0],
        "rows": rows,
        "losses": [evaluate_loss(rows, config) for config in LOSSES],
        "credits": make_credits(generator),
        "overlong": make_overlong(),
        "groups": make_groups(generator),
        "batch": make_batch(rows),
    }
    if "--check" in sys.argv:
        kept = json.loads(PATH.read_text())
        if not all(close(made[key], kept[key]) for key in made if key != "torch"):
            sys.exit(f"{PATH.name} is not what this PyTorch computes; run algorithms.py without --check and look at the difference")
        print("algorithms.json agrees")
        return
    PATH.write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
