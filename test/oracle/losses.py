"""Writes fixtures/losses.json: losses and their gradients by PyTorch's autograd, for trainer/loss.

Run: python test/oracle/losses.py [--check]; --check compares with the committed file instead of writing it.
The formulas are those of the papers that the sources name, written with tensors and left to autograd.
"""

import json
import math
import sys
from pathlib import Path

import torch

PATH = Path(__file__).parent / "fixtures" / "losses.json"


def make_rows(generator):
    """Rows of unequal lengths; rows 1 and 2 belong to one rollout; behaviour, proximal and policy differ."""
    rows = []
    for length, rollout in ((7, 0), (5, 1), (6, 1), (9, 2)):
        draw = lambda scale: torch.randn(length, generator=generator, dtype=torch.float64) * scale
        behaviour = -torch.rand(length, generator=generator, dtype=torch.float64) * 3 - 0.05
        proximal = (behaviour + draw(0.5)).clamp(max=-0.01)
        rows.append(
            {
                "rollout": rollout,
                "lossMask": [0] + [int(v) for v in torch.rand(length - 1, generator=generator) < 0.6],
                "advantages": draw(1.0).tolist(),
                "behaviourLogprobs": behaviour.tolist(),
                "proximalLogprobs": proximal.tolist(),
                "policyLogprobs": (proximal + draw(0.3)).clamp(max=-0.01).tolist(),
                "referenceLogprobs": (behaviour + draw(0.3)).clamp(max=-0.01).tolist(),
                "entropy": (torch.rand(length, generator=generator, dtype=torch.float64) * 2).tolist(),
            }
        )
    return rows


CONFIGS = [
    {"type": "reinforce", "importance": {"type": "none"}, "aggregation": "token-mean"},
    {"type": "reinforce", "importance": {"type": "truncated", "cap": 2}, "aggregation": "rollout-mean"},
    {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.28, "importance": {"type": "truncated", "cap": 2},
     "aggregation": "token-mean"},
    {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.2, "klCoefficient": 0.04, "importance": {"type": "none"},
     "aggregation": "rollout-mean"},
    {"type": "ppo-clip", "clipLow": 0.1, "clipHigh": 0.1, "klCoefficient": 0.5, "entropyBonus": 0.01,
     "importance": {"type": "truncated", "cap": 1.5}, "aggregation": "token-mean"},
]


def evaluate(rows, config):
    """The loss of a batch, and its gradient with respect to the policy's log-probabilities and entropies."""
    policies = [torch.tensor(r["policyLogprobs"], dtype=torch.float64, requires_grad=True) for r in rows]
    entropies = [torch.tensor(r["entropy"], dtype=torch.float64, requires_grad=True) for r in rows]
    masks = [torch.tensor(r["lossMask"], dtype=torch.float64) for r in rows]
    importance = config["importance"]
    terms = []
    for row, policy, entropy in zip(rows, policies, entropies):
        tensor = lambda key: torch.tensor(row[key], dtype=torch.float64)
        advantage, behaviour, proximal = tensor("advantages"), tensor("behaviourLogprobs"), tensor("proximalLogprobs")
        target = policy if config["type"] == "reinforce" else proximal
        weight = torch.ones_like(policy)
        if importance["type"] == "truncated":
            weight = torch.exp(target - behaviour).clamp(max=importance["cap"]).detach()
        if config["type"] == "reinforce":
            term = -weight * advantage * policy
        else:
            ratio = torch.exp(policy - proximal)
            clipped = ratio.clamp(1 - config["clipLow"], 1 + config["clipHigh"])
            term = -weight * torch.minimum(ratio * advantage, clipped * advantage)
        difference = tensor("referenceLogprobs") - policy
        term = term + config.get("klCoefficient", 0) * (torch.exp(difference) - difference - 1)
        terms.append(term - config.get("entropyBonus", 0) * entropy)
    if config["aggregation"] == "token-mean":
        total = sum(mask.sum() for mask in masks)
        loss = sum((term * mask).sum() for term, mask in zip(terms, masks)) / total
    else:
        rollouts = sorted({row["rollout"] for row in rows})
        means = []
        for rollout in rollouts:
            own = [at for at, row in enumerate(rows) if row["rollout"] == rollout]
            means.append(sum((terms[at] * masks[at]).sum() for at in own) / sum(masks[at].sum() for at in own))
        loss = sum(means) / len(means)
    loss.backward()
    zeros = lambda tensor: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    return {
        "config": config,
        "loss": loss.item(),
        "dLogprobs": [(zeros(p) * m).tolist() for p, m in zip(policies, masks)],
        "dEntropy": [(zeros(e) * m).tolist() for e, m in zip(entropies, masks)],
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
    rows = make_rows(torch.Generator().manual_seed(7))
    made = {"torch": torch.__version__.split("+")[0], "rows": rows, "cases": [evaluate(rows, c) for c in CONFIGS]}
    if "--check" in sys.argv:
        kept = json.loads(PATH.read_text())
        if not close(made["rows"], kept["rows"]) or not close(made["cases"], kept["cases"]):
            sys.exit(f"{PATH.name} is not what this PyTorch computes; run losses.py without --check and look at the difference")
        print("losses.json agrees")
        return
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
