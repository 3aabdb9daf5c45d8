"""Writes fixtures/trl.json: what TRL's own GRPOTrainer computes of given log-probabilities, for trainer/loss.

Run: python test/oracle/trl_losses.py [--check].
TRL computes its loss inside the trainer; here its method is called on an object that has the trainer's settings and
gives out log-probabilities of ours, so that no data set, model or device is involved. Every row is one answer.
trl_step.py runs the whole trainer.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
import trl
from algorithms import close
from trl import GRPOTrainer

PATH = Path(__file__).parent / "fixtures" / "trl.json"
LONGEST = 16

# What TRL is asked for, and the same in our words.
CASES = [
    ({"loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.04},
     {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.2, "klCoefficient": 0.04, "aggregation": "rollout-mean"}),
    ({"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28},
     {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.28, "aggregation": "token-mean"}),
    ({"loss_type": "bnpo", "epsilon_low": 0.2, "epsilon_high": 0.28, "tis": 2.0},
     {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.28, "aggregation": "token-mean",
      "importance": {"type": "truncated", "cap": 2}}),
    ({"loss_type": "dr_grpo", "epsilon_low": 0.2, "epsilon_high": 0.2},
     {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.2, "aggregation": "sequence-sum", "responseTokens": LONGEST}),
    ({"loss_type": "grpo", "epsilon_low": 0.05, "epsilon_high": 0.08, "level": "sequence"},
     {"type": "gspo", "clipLow": 0.05, "clipHigh": 0.08, "aggregation": "sequence-mean"}),
    ({"loss_type": "grpo", "epsilon_low": 3e-4, "epsilon_high": 4e-4, "level": "sequence"},
     {"type": "gspo", "clipLow": 3e-4, "clipHigh": 4e-4, "aggregation": "sequence-mean"}),
    ({"loss_type": "cispo", "epsilon_low": 0.2, "epsilon_high": 1.4},
     {"type": "cispo", "clipLow": 1, "clipHigh": 0.4, "aggregation": "token-mean"}),
    ({"loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2, "delta": 1.5},
     {"type": "dual-clip", "clipLow": 0.2, "clipHigh": 0.2, "bound": 1.5, "aggregation": "sequence-mean"}),
]


def make_batch(generator):
    lengths = [5, 3, 9, 6]
    mask = torch.tensor([[1] * n + [0] * (max(lengths) - n) for n in lengths])
    draw = lambda scale: torch.randn(mask.shape, generator=generator, dtype=torch.float64) * scale
    behaviour = -torch.rand(mask.shape, generator=generator, dtype=torch.float64) * 3 - 0.3
    proximal = (behaviour + draw(0.6)).clamp(max=-0.01)
    policy = (proximal + draw(0.4)).clamp(max=-0.01)
    reference = (behaviour + draw(0.3)).clamp(max=-0.01)
    advantages = torch.randn(len(lengths), generator=generator, dtype=torch.float64)
    return SimpleNamespace(**locals())


def settings(batch, policy, asked):
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (policy, torch.zeros_like(policy), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=asked.get("level", "token"),
        beta=asked.get("beta", 0.0),
        loss_type=asked["loss_type"],
        epsilon_low=asked["epsilon_low"],
        epsilon_high=asked["epsilon_high"],
        use_vllm="tis" in asked,
        vllm_importance_sampling_correction="tis" in asked,
        max_completion_length=LONGEST,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        model=SimpleNamespace(training=True),
        # The KL term as the GRPO paper has it, without TRL's later correction.
        args=SimpleNamespace(use_bias_correction_kl=False, delta=asked.get("delta"), steps_per_generation=1),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
    )
    inputs = {
        "prompt_ids": torch.zeros(len(batch.mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(batch.mask), 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(batch.mask),
        "completion_mask": batch.mask,
        "advantages": batch.advantages,
        "old_per_token_logps": batch.proximal,
        "ref_per_token_logps": batch.reference,
        "num_items_in_batch": batch.mask.sum(),
        "importance_sampling_ratio": torch.exp(batch.proximal - batch.behaviour).clamp(max=asked.get("tis", 2.0)),
    }
    return trainer, inputs


def evaluate(batch, asked, ours):
    policy = batch.policy.clone().requires_grad_()
    trainer, inputs = settings(batch, policy, asked)
    loss = GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    loss.backward()
    config = {"importance": {"type": "none"}, **ours}
    return {"trl": asked, "config": config, "loss": loss.item(), "dLogprobs": policy.grad.tolist()}


def main():
    batch = make_batch(torch.Generator().manual_seed(5))
    of = lambda name: getattr(batch, name).tolist()
    made = {
        "trl": trl.__version__,
        "lossMask": of("mask"),
        "advantages": of("advantages"),
        "behaviourLogprobs": of("behaviour"),
        "proximalLogprobs": of("proximal"),
        "policyLogprobs": of("policy"),
        "referenceLogprobs": of("reference"),
        "cases": [evaluate(batch, asked, ours) for asked, ours in CASES],
    }
    if "--check" in sys.argv:
        kept = json.loads(PATH.read_text())
        if not all(close(made[key], kept[key]) for key in made if key != "trl"):
            sys.exit(f"{PATH.name} is not what TRL {trl.__version__} computes; run trl_losses.py without --check and look")
        print("trl.json agrees")
        return
    PATH.write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
