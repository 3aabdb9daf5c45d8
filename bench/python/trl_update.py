"""TRL's GRPOTrainer as the peer of the update benchmark. Usage: trl_update.py

Nothing of TRL is replaced or timed apart: its own `train()` runs, and its `rollout_func` hands over our rollouts in place
of sampled ones. An update lasts from there to the end of the optimizer's step: padding, reference log-probabilities where
there is a KL term, rewards, advantages, and for each pass loss and backward, then clipping and AdamW (fused). With one
step for each batch TRL needs no log-probabilities of the old policy and does not compute them. Off is all that would
cost time and is no part of an update: generation, gradient checkpointing, logging, saving, evaluation.

Reads a JSON setup line (update-parts/protocol.ts), answers what the batch is, then one line for each `go`.
"""

import json
import sys
import tempfile
import time

import torch
import trl
from datasets import Dataset
from peft import LoraConfig, set_peft_model_state_dict
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Clock(TrainerCallback):
    """Answers after each step; the time begins where the rollouts are handed over."""

    started = 0.0
    norm = 0.0

    def on_step_end(self, args, state, control, **_):
        say({"ms": (time.perf_counter() - self.started) * 1000, "gradNorm": self.norm})


def say(answer):
    print(json.dumps(answer), file=answers, flush=True)


def main():
    setup = json.loads(sys.stdin.readline())
    torch.set_num_threads(setup["threads"])
    rows, group = setup["rows"], setup["group"]
    half = setup.get("precision") == "bf16"
    # Frozen weights alone may be rounded.
    dtype = torch.bfloat16 if half and setup["method"] == "lora" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(setup["model"], dtype=dtype)
    vocab = {f"t{i}": i for i in range(model.config.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocab, unk_token="t0")), pad_token="t0", eos_token="t1"
    )
    clock = Clock()
    output = {
        "prompt_ids": [row["prompt"] for row in rows],
        "completion_ids": [row["completion"] for row in rows],
        "logprobs": None,
        "env_mask": [row["mask"] for row in rows],
        "earned": [row["reward"] for row in rows],
    }

    def rollout_func(prompts, trainer):
        if sys.stdin.readline().strip() != "go":
            sys.exit()
        clock.started = time.perf_counter()
        return dict(output)

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=[lambda earned, **_: earned],
            train_dataset=Dataset.from_dict({"prompt": ["t2"] * (len(rows) // group)}),
            processing_class=tokenizer,
            rollout_func=rollout_func,
            callbacks=[clock],
            peft_config=LoraConfig(r=16, lora_alpha=32, target_modules=LINEAR) if setup["method"] == "lora" else None,
            args=GRPOConfig(
                output_dir=folder,
                num_generations=group,
                per_device_train_batch_size=setup["passRows"],
                gradient_accumulation_steps=len(rows) // setup["passRows"],
                max_steps=1_000_000,
                loss_type="grpo",
                beta=setup["klCoefficient"],
                use_bias_correction_kl=False,
                learning_rate=setup["learningRate"],
                lr_scheduler_type="constant",
                weight_decay=0.0,
                max_grad_norm=1.0,
                gradient_checkpointing=False,
                bf16=half,
                use_cpu=setup.get("device", "cpu") == "cpu",
                max_completion_length=max(len(row["completion"]) for row in rows),
                dataloader_pin_memory=False,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
        )
        if setup["method"] == "lora":
            set_peft_model_state_dict(trainer.model, load_file(f"{setup['adapter']}/adapter_model.safetensors"))
        clip = trainer.accelerator.clip_grad_norm_

        def noting(*args, **kwargs):
            norm = clip(*args, **kwargs)
            clock.norm = norm.item()
            return norm

        trainer.accelerator.clip_grad_norm_ = noting
        longest = max(len(row["prompt"]) for row in rows) + max(len(row["completion"]) for row in rows)
        say(
            {
                "version": f"{trl.__version__}, PyTorch {torch.__version__}",
                "rows": len(rows),
                "tokens": sum(len(row["prompt"]) + len(row["completion"]) for row in rows),
                "paddedTokens": len(rows) * longest,
            }
        )
        trainer.train()


# What libraries print must not come between the answers.
answers, sys.stdout = sys.stdout, sys.stderr
if __name__ == "__main__":
    main()
