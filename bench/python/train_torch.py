"""PyTorch as the peer of the training benchmark. Usage: train_torch.py THREADS

Reads one JSON request a line, {model, method: full|lora, how: eager|autocast|compile, tokens, mask}, runs forward,
cross-entropy over the masked tokens and backward, and answers {ms, loss}. Models stay loaded between requests, and
compiled for the shapes that they have seen. {probe: true} is answered with {bf16_speedup}: how many times faster a
product is in bf16 than in float32, far below 1 where the processor has no units for it.
"""

import json
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def load(path: str, method: str) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    if method == "lora":
        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=LINEAR, task_type="CAUSAL_LM"))
    model.train()
    return model


def masked_loss(
    base: torch.nn.Module, tokens: torch.Tensor, places: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Cross-entropy of the tokens at `places` of all rows; logits of these alone, as the engine computes them too."""
    hidden = base.model(tokens, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)[places]
    return torch.nn.functional.cross_entropy(base.lm_head(hidden).float(), targets, reduction="sum")


def bf16_speedup() -> float:
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(256, 256, dtype=dtype)
        matrix @ matrix
        started = time.perf_counter()
        for _ in range(5):
            matrix @ matrix
        seconds[dtype] = time.perf_counter() - started
    return seconds[torch.float32] / seconds[torch.bfloat16]


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    compiled = torch.compile(masked_loss)
    models: dict[tuple[str, str], torch.nn.Module] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("probe"):
            print(json.dumps({"bf16_speedup": bf16_speedup()}), flush=True)
            continue
        key = (request["model"], request["method"])
        model = models.setdefault(key, None) or load(*key)
        models[key] = model
        tokens = torch.tensor(request["tokens"])
        mask = torch.tensor(request["mask"])[:, 1:].reshape(-1).bool()
        model.zero_grad(set_to_none=True)
        started = time.perf_counter()
        targets = tokens[:, 1:].reshape(-1)[mask]
        forward = compiled if request["how"] == "compile" else masked_loss
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=request["how"] == "autocast"):
            base = model.get_base_model() if request["method"] == "lora" else model
            loss = forward(base, tokens, mask.nonzero().squeeze(1), targets)
        loss.backward()
        print(json.dumps({"ms": (time.perf_counter() - started) * 1000, "loss": loss.item()}), flush=True)


if __name__ == "__main__":
    main()
