"""Tiny random decoders and what PyTorch computes for them. Usage: make_engine_fixtures.py OUT

For each family OUT/<family> holds a Hugging Face checkpoint, a PEFT adapter (adapter/), samples with their
cotangents (samples.json) and the expected scores (scores.json) and gradients (gradients-full.safetensors,
gradients-lora.safetensors) of L = sum(dLogprob * logprob + dEntropy * entropy) over the masked tokens.
OUT/adamw.json holds three steps of AdamW.
"""

import json
import random
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TEMPERATURE = 0.8
VOCAB = 23
COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
)
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES = {
    # Untied, every bias, scaled rotary frequencies.
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True, tie_word_embeddings=False, rope_parameters=LLAMA3_SCALING)
    ),
    # Tied, bias on q, k and v, linear scaling.
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(
            **COMMON,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0},
        )
    ),
    # Tied, q/k norm, heads wider than width / heads.
    "qwen3": lambda: Qwen3ForCausalLM(
        Qwen3Config(
            **COMMON,
            head_dim=6,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        )
    ),
}


def randomise(model: torch.nn.Module) -> None:
    """Larger than usual weights, gains off 1 and biases off 0, so that every term shows in the gradients."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(0.3 * torch.randn_like(parameter))


def make_samples() -> list[dict]:
    samples = []
    for length in (11, 7, 14, 2, 5):
        mask = [0] + [int(random.random() < 0.6) for _ in range(length - 1)]
        mask[1] = 1
        samples.append(
            {
                "tokens": [random.randrange(VOCAB) for _ in range(length)],
                "lossMask": mask,
                "dLogprobs": [random.uniform(-1, 1) for _ in range(length)],
                "dEntropy": [random.uniform(-1, 1) for _ in range(length)],
            }
        )
    return samples


def scores_and_backward(model: torch.nn.Module, samples: list[dict]) -> list[dict]:
    results = []
    loss = torch.zeros(())
    for sample in samples:
        tokens = torch.tensor([sample["tokens"]])
        logits = model(tokens).logits[0, :-1].float() / TEMPERATURE
        logs = torch.log_softmax(logits, dim=-1)
        entropy = -(logs.exp() * logs).sum(-1)
        logprobs = logs.gather(-1, tokens[0, 1:, None])[:, 0]
        mask = torch.tensor(sample["lossMask"][1:])
        d_logprobs = torch.tensor(sample["dLogprobs"][1:])
        d_entropy = torch.tensor(sample["dEntropy"][1:])
        loss = loss + ((logprobs * d_logprobs + entropy * d_entropy) * mask).sum()
        results.append({"logprobs": [0.0, *(logprobs * mask).tolist()], "entropy": [0.0, *(entropy * mask).tolist()]})
    loss.backward()
    return results


def gradients_of(model: torch.nn.Module, rename=lambda name: name) -> dict[str, torch.Tensor]:
    return {
        rename(name): parameter.grad.contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is not None
    }


def adamw_steps() -> dict:
    """Three steps of torch.optim.AdamW on one vector, with weight decay."""
    settings = dict(lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    start = torch.randn(6)
    gradients = torch.randn(3, 6)
    weights = start.clone().requires_grad_()
    optimizer = torch.optim.AdamW([weights], **settings)
    for gradient in gradients:
        weights.grad = gradient.clone()
        optimizer.step()
    return {**settings, "start": start.tolist(), "gradients": gradients.tolist(), "end": weights.tolist()}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    out.mkdir(parents=True, exist_ok=True)
    (out / "adamw.json").write_text(json.dumps(adamw_steps()))
    for seed, (family, make) in enumerate(FAMILIES.items()):
        torch.manual_seed(seed)
        random.seed(seed)
        folder = out / family
        folder.mkdir(parents=True, exist_ok=True)
        model = make()
        randomise(model)
        model.save_pretrained(folder)
        samples = make_samples()
        (folder / "samples.json").write_text(json.dumps({"temperature": TEMPERATURE, "samples": samples}))

        full = scores_and_backward(model, samples)
        save_file(gradients_of(model), folder / "gradients-full.safetensors")
        model.zero_grad()

        config = LoraConfig(r=3, lora_alpha=6, lora_dropout=0.0, target_modules=LINEAR, task_type="CAUSAL_LM")
        adapted = get_peft_model(model, config)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                with torch.no_grad():
                    parameter.copy_(0.3 * torch.randn_like(parameter))
        adapted.save_pretrained(folder / "adapter")
        (folder / "adapter" / "README.md").unlink(missing_ok=True)
        lora = scores_and_backward(adapted, samples)
        save_file(
            gradients_of(adapted, lambda name: name.replace(".default.", ".")), folder / "gradients-lora.safetensors"
        )
        (folder / "scores.json").write_text(json.dumps({"full": full, "lora": lora}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
