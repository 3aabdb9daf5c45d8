"""PyTorch eager as the peer of the training benchmark. Usage: train_torch.py THREADS

Reads one JSON request a line, {model, method: full|lora, autocast, tokens, mask}, runs forward, cross-entropy over
the masked tokens and backward, and answers {ms, loss}. Models stay loaded between requests.
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


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    models: dict[tuple[str, str], torch.nn.Module] = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = (request["model"], request["method"])
        model = models.setdefault(key, None) or load(*key)
        models[key] = model
        tokens = torch.tensor(request["tokens"])
        mask = torch.tensor(request["mask"])[:, 1:].reshape(-1).bool()
        model.zero_grad(set_to_none=True)
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=request["autocast"]):
            # Logits of the targets alone, as the engine computes them too.
            base = model.get_base_model() if request["method"] == "lora" else model
            hidden = base.model(tokens, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)[mask]
            logits = base.lm_head(hidden)
            loss = torch.nn.functional.cross_entropy(logits.float(), tokens[:, 1:].reshape(-1)[mask], reduction="sum")
        loss.backward()
        print(json.dumps({"ms": (time.perf_counter() - started) * 1000, "loss": loss.item()}), flush=True)


if __name__ == "__main__":
    main()
