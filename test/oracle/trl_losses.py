"""Writes fixtures/trl.json and trl-step.safetensors: what TRL's own GRPOTrainer computes, for trainer/loss.

Run: python test/oracle/trl_losses.py [--check], with `pip install trl==1.16.0 accelerate datasets` beside the rest.
TRL computes its loss inside the trainer; here its method is called on an object that has the trainer's settings and
gives out log-probabilities of ours, so that no data set or device is involved. Every row is one answer. The step is one
of GRPO through a real model, the tiny Llama of the engine's fixtures, down to the gradients of its weights.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
import trl
from algorithms import close
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

FIXTURES = Path(__file__).parent / "fixtures"
PATH, GRADIENTS, MODEL = FIXTURES / "trl.json", FIXTURES / "trl-step.safetensors", FIXTURES / "engine" / "llama"
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


def grpo_step():
    """One GRPO step: TRL's loss of a model's log-probabilities, and the gradients of all weights."""
    generator = torch.Generator().manual_seed(9)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager")
    prompts = torch.randint(0, model.config.vocab_size, (4, 3), generator=generator)
    completions = torch.randint(0, model.config.vocab_size, (4, 7), generator=generator)
    mask = torch.tensor([[1] * n + [0] * (7 - n) for n in (7, 4, 2, 6)])
    asked, ours = CASES[0]
    batch = SimpleNamespace(
        mask=mask,
        advantages=torch.tensor([1.2, -0.4, 0.3, -1.1]),
        proximal=torch.zeros(4, 7),
        reference=torch.zeros(4, 7),
        behaviour=torch.zeros(4, 7),
    )
    trainer, inputs = settings(batch, None, asked)

    # TRL scores by a fused head that its constructor patches into the model; this is what it computes.
    def score(model, ids, attention, kept, **_):
        logits = model(input_ids=ids, attention_mask=attention).logits[:, -kept - 1 : -1]
        logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, -kept:, None]).squeeze(-1)
        return logprobs, torch.zeros_like(logprobs), None

    trainer._get_per_token_logps_and_entropies, trainer.model = score, model.train()
    inputs |= {"prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts), "completion_ids": completions}
    ids, attention = torch.cat([prompts, completions], 1), torch.cat([torch.ones_like(prompts), mask], 1)
    with torch.no_grad():
        logprobs = score(model, ids, attention, 7)[0]
    # The policy has moved on since it sampled, and further since the start.
    inputs["old_per_token_logps"] = logprobs + 0.25 * torch.randn(4, 7, generator=generator)
    inputs["ref_per_token_logps"] = logprobs + 0.5 * torch.randn(4, 7, generator=generator)
    loss = GRPOTrainer._compute_loss(trainer, model, inputs)
    loss.backward()
    step = {
        "config": {"importance": {"type": "none"}, **ours},
        "tokens": ids.tolist(),
        "lossMask": torch.cat([torch.zeros_like(prompts), mask], 1).tolist(),
        "advantages": batch.advantages.double().tolist(),
        "proximalLogprobs": torch.cat([torch.zeros(4, 3), inputs["old_per_token_logps"]], 1).double().tolist(),
        "referenceLogprobs": torch.cat([torch.zeros(4, 3), inputs["ref_per_token_logps"]], 1).double().tolist(),
        "loss": loss.item(),
    }
    return step, {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def near(a, b):
    """Float32 through a model: sums may be taken in another order on another machine."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(near(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(near(x, y) for x, y in zip(a, b))
    return abs(a - b) <= 1e-5 * max(1, abs(b)) if isinstance(a, float) else a == b


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
    step, gradients = grpo_step()
    if "--check" in sys.argv:
        kept = json.loads(PATH.read_text())
        kept_step, kept_gradients = kept.pop("step"), load_file(GRADIENTS)
        agree = near(step, kept_step) and gradients.keys() == kept_gradients.keys()
        agree = agree and all(torch.allclose(gradients[k], kept_gradients[k], rtol=1e-4, atol=1e-6) for k in gradients)
        if not agree or not all(close(made[key], kept[key]) for key in made if key != "trl"):
            sys.exit(f"{PATH.name} is not what TRL {trl.__version__} computes; run trl_losses.py without --check and look")
        print("trl.json agrees")
        return
    PATH.write_text(json.dumps({**made, "step": step}, separators=(",", ":")) + "\n")
    save_file(gradients, GRADIENTS)


if __name__ == "__main__":
    main()
