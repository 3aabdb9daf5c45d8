"""Writes fixtures/value.json and value-head.safetensors: GAE, the clipped value loss and a model with a value head by PyTorch.

Run: python test/oracle/value.py [--check]; --check compares with the committed files instead of writing them.
Everything is in float64. GAE is a matrix of discounts times the one-step errors; gradients are left to autograd. The
models are the tiny ones of the engine's fixtures, with a linear head on the final norm's output before its gain.
"""

import json
import sys
from pathlib import Path

import torch
from algorithms import close, tensor
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

FIXTURES = Path(__file__).parent / "fixtures"
PATH, GRADIENTS = FIXTURES / "value.json", FIXTURES / "value-head.safetensors"
# Of each row: prompt tokens, then answer tokens, of each of its transitions.
LAYOUT = [[(1, 3), (2, 2)], [(2, 5)], [(1, 2), (1, 1), (3, 4)]]


def make_rows(generator):
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    rows = []
    for layout in LAYOUT:
        mask, sequence, credits = [], [], []
        for index, (prompt, answer) in enumerate(layout):
            mask += [0] * prompt + [1] * answer
            sequence += [-1] * prompt + [index] * answer
            credits += [0.0] * prompt + [draw(1).item()] * answer
        policy = -torch.rand(len(mask), generator=generator, dtype=torch.float64) * 3 - 0.1
        values = draw(len(mask)) * 0.7
        rows.append(
            {
                "lossMask": mask,
                "sequenceOfToken": sequence,
                "credits": credits,
                "policyLogprobs": policy.tolist(),
                "referenceLogprobs": (policy + 0.5 * draw(len(mask))).tolist(),
                "proximalValues": values.tolist(),
                "values": (values + 0.3 * draw(len(mask))).tolist(),
            }
        )
    return rows


def estimate(row, gamma, decay, coefficient):
    """Advantages and λ-returns: A = D·δ with D[t, u] = (γλ)^(u − t), for each transition on its own."""
    mask, sequence = torch.tensor(row["lossMask"]), torch.tensor(row["sequenceOfToken"])
    penalty = coefficient * (tensor(row["policyLogprobs"]) - tensor(row["referenceLogprobs"]))
    values = tensor(row["proximalValues"])
    advantages, returns = torch.zeros(len(mask), dtype=torch.float64), torch.zeros(len(mask), dtype=torch.float64)
    for index in range(int(sequence.max()) + 1):
        own = sequence == index
        rewards = -penalty[own]
        rewards[-1] += tensor(row["credits"])[own][-1]
        here = values[own]
        after = torch.cat([here[1:], torch.zeros(1, dtype=torch.float64)])
        steps = torch.arange(len(here))
        distance = steps[None, :] - steps[:, None]
        discounts = torch.where(distance >= 0, tensor(gamma * decay) ** distance.clamp(min=0), tensor(0.0))
        advantages[own] = discounts @ (rewards + gamma * after - here)
        returns[own] = advantages[own] + here
    return advantages, returns


def make_critic(generator):
    rows = make_rows(generator)
    masks = [torch.tensor(row["lossMask"], dtype=torch.bool) for row in rows]
    cases = []
    for gamma, decay, coefficient, weight, clip in (
        (1.0, 0.95, 0.0, 0.5, 0.2),
        (0.99, 0.9, 0.1, 1.0, 0.1),
        (1.0, 1.0, 0.05, 0.5, 0.4),
        (0.9, 0.0, 0.0, 2.0, 10.0),
    ):
        made = [estimate(row, gamma, decay, coefficient) for row in rows]
        flat = torch.cat([advantages[mask] for (advantages, _), mask in zip(made, masks)])
        scale = torch.sqrt(flat.var(unbiased=True) + 1e-8)
        leaves = [tensor(row["values"]).requires_grad_() for row in rows]
        pick = lambda tensors: torch.cat([each[mask] for each, mask in zip(tensors, masks)])
        now, before = pick(leaves), pick([tensor(row["proximalValues"]) for row in rows])
        target = pick([returns for _, returns in made])
        bounded = torch.clamp(now, before - clip, before + clip)
        squares, bounded_squares = (now - target) ** 2, (bounded - target) ** 2
        loss = 0.5 * torch.maximum(squares, bounded_squares).mean()
        (weight * loss).backward()
        cases.append(
            {
                "gamma": gamma,
                "lambda": decay,
                "klCoefficient": coefficient,
                "coefficient": weight,
                "clip": clip,
                "advantages": [advantages.tolist() for advantages, _ in made],
                "returns": [returns.tolist() for _, returns in made],
                "whitened": [
                    ((advantages - flat.mean()) / scale * mask).tolist() for (advantages, _), mask in zip(made, masks)
                ],
                "loss": loss.item(),
                "clipFraction": (bounded_squares > squares).double().mean().item(),
                "explainedVariance": (1 - (target - before).var() / target.var()).item(),
                "dValues": [leaf.grad.tolist() for leaf in leaves],
            }
        )
    return {"rows": rows, "cases": cases}


def run_model(family, method, generator):
    """Scores of the family's samples, and the gradients of all that is trained, for cotangents of all three scores."""
    folder = FIXTURES / "engine" / family
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").double()
    width = base.config.hidden_size
    head = torch.nn.Linear(width, 1).double()
    with torch.no_grad():
        # Whole multiples of 2⁻¹⁰ are the same in float32.
        for parameter in head.parameters():
            parameter.copy_((torch.randn(parameter.shape, generator=generator) * 512).round() / 1024)
    model = PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True).double() if method == "lora" else base
    seen = {}
    base.model.norm.register_forward_hook(lambda norm, inputs, _: seen.update(hidden=inputs[0]))
    asked = json.loads((folder / "samples.json").read_text())
    loss, scores = torch.zeros((), dtype=torch.float64), []
    for sample in asked["samples"]:
        tokens = torch.tensor([sample["tokens"]])
        logits = model(tokens).logits[0, :-1].double() / asked["temperature"]
        hidden = seen["hidden"][0, :-1].double()
        normal = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + base.config.rms_norm_eps)
        values = head(normal)[:, 0]
        logs = torch.log_softmax(logits, -1)
        logprobs = logs.gather(-1, tokens[0, 1:, None])[:, 0]
        entropy = -(logs.exp() * logs).sum(-1)
        mask = torch.tensor(sample["lossMask"][1:])
        drawn = torch.randn(len(mask), generator=generator, dtype=torch.float64)
        pulls = tensor(sample["dLogprobs"][1:]) * logprobs + tensor(sample["dEntropy"][1:]) * entropy + drawn * values
        loss = loss + (pulls * mask).sum()
        scores.append({"dValues": [0.0, *drawn.tolist()], "values": [0.0, *(values * mask).tolist()]})
    loss.backward()
    gradients = {
        name.replace(".default.", "."): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is not None
    }
    gradients |= {f"value_head.{name}": parameter.grad for name, parameter in head.named_parameters()}
    weights = {f"value_head.{name}": parameter.detach() for name, parameter in head.named_parameters()}
    prefixed = lambda kind, tensors: {f"{family}/{method}/{kind}/{name}": t.float().contiguous() for name, t in tensors.items()}
    return {"family": family, "method": method, "samples": scores}, {
        **prefixed("weights", weights),
        **prefixed("gradients", gradients),
    }


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(23)
    critic = make_critic(generator)
    models, tensors = [], {}
    for family, method in (("llama", "full"), ("qwen2", "lora"), ("qwen3", "full"), ("qwen3", "lora")):
        scores, made = run_model(family, method, generator)
        models.append(scores)
        tensors |= made
    made = {"torch": torch.__version__.split("+")[0], **critic, "models": models}
    if "--check" in sys.argv:
        kept, committed = json.loads(PATH.read_text()), load_file(GRADIENTS)
        agree = committed.keys() == tensors.keys() and all(
            torch.allclose(committed[name], each, rtol=1e-5, atol=1e-7) for name, each in tensors.items()
        )
        if not agree or not all(close(made[key], kept[key]) for key in made if key != "torch"):
            sys.exit(f"{PATH.name} is not what this PyTorch computes; run value.py without --check and look at the difference")
        print("value.json agrees")
        return
    PATH.write_text(json.dumps(made, separators=(",", ":")) + "\n")
    save_file(tensors, GRADIENTS)


if __name__ == "__main__":
    main()
