"""Writes fixtures/trl-step.json and trl-step-*.safetensors: two optimizer steps of TRL's own GRPOTrainer.

Run: python test/oracle/trl_step.py [--check], with `pip install -r test/oracle/requirements.txt`.
Nothing of TRL is replaced: its `train()` runs on the tiny Llama of the engine's fixtures, and its `rollout_func` gives it
our rollouts in place of sampled ones. From there on advantages, old and reference log-probabilities, loss, backward,
clipping and AdamW are TRL's. A batch of two groups is used for two steps, one group each: at the second the weights
have moved, so that ratios are clipped and the KL term pulls.
"""

import itertools
import json
import sys
import tempfile
from pathlib import Path

import torch
import trl
from datasets import Dataset
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

FIXTURES = Path(__file__).parent / "fixtures"
MODEL = FIXTURES / "engine" / "llama"
VOCAB = json.loads((MODEL / "config.json").read_text())["vocab_size"]
GROUP = 4

# AdamW without the first moment, whose state is then the clipped gradient itself, and with an ε as large as gradients
# are: a small difference between two gradients makes a small difference between two steps.
OPTIMIZER = {"maxGradNorm": 0.5, "beta1": 0.0, "beta2": 0.999, "epsilon": 0.01}
TEMPERATURE = 0.8
ADVANTAGE = {"type": "group-mean-std", "epsilon": 1e-4}
GRPO = {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.2, "klCoefficient": 0.04, "aggregation": "rollout-mean"}
DAPO = {"type": "ppo-clip", "clipLow": 0.2, "clipHigh": 0.28, "aggregation": "batch-mean"}

# What TRL is asked for, and the same in our words.
CASES = [
    ("grpo-full", "full", {"loss_type": "grpo", "epsilon": 0.2, "beta": 0.04, "learning_rate": 0.03}, GRPO),
    ("grpo-lora", "lora", {"loss_type": "grpo", "epsilon": 0.2, "beta": 0.04, "learning_rate": 0.01}, GRPO),
    ("dapo-full", "full", {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "learning_rate": 0.03}, DAPO),
]


def make_rollouts():
    """Two groups of rollouts of one to three calls each; every prompt but the first goes on from the call before it."""
    generator = torch.Generator().manual_seed(31)
    ids = lambda low, high: torch.randint(
        3, VOCAB, (int(torch.randint(low, high, (1,), generator=generator)),), generator=generator
    ).tolist()
    rewards = [1.0, 0.0, 0.25, 0.6, 0.1, 0.9, 0.0, 0.4]
    first_prompts = [ids(3, 5), ids(6, 8)]
    rollouts = []
    for at, reward in enumerate(rewards):
        prompt, calls = first_prompts[at // GROUP], []
        for _ in range(1 + at % 3):
            response = ids(2, 6)
            calls.append({"prompt": prompt, "response": response})
            prompt = prompt + response + ids(1, 4)
        rollouts.append({"group": at // GROUP, "reward": reward, "calls": calls})
    return rollouts


def as_trl_takes_them(rollouts):
    """One sequence a rollout, `env_mask` 0 where the environment spoke."""
    output = {"prompt_ids": [], "completion_ids": [], "env_mask": [], "logprobs": [], "earned": []}
    for rollout in rollouts:
        calls = rollout["calls"]
        start = len(calls[0]["prompt"])
        completion, mask = [], []
        for call in calls:
            tool = call["prompt"][start + len(completion) :]
            completion += tool + call["response"]
            mask += [0] * len(tool) + [1] * len(call["response"])
        output["prompt_ids"].append(calls[0]["prompt"])
        output["completion_ids"].append(completion)
        output["env_mask"].append(mask)
        output["logprobs"].append([0.0] * len(completion))
        output["earned"].append(rollout["reward"])
    return output


def seed_that_keeps_groups():
    """TRL shuffles a batch's rows before it deals them to steps; under this seed each step gets a whole group."""
    for seed in itertools.count():
        if set(torch.randperm(2 * GROUP, generator=torch.Generator().manual_seed(seed))[:GROUP].tolist()) == set(range(GROUP)):
            return seed


class Watch(TrainerCallback):
    """Notes what the optimizer is about to be given."""

    def __init__(self):
        self.gradients = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})


def train(rollouts, method, asked):
    """Loss, gradient norm and clipped gradients of each of the two steps."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager")
    if method == "lora":
        model = PeftModel.from_pretrained(model, MODEL / "adapter", is_trainable=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0")),
        pad_token="t0",
        eos_token="t2",
    )

    def rollout_func(prompts, trainer):
        torch.manual_seed(seed_that_keeps_groups())
        return as_trl_takes_them(rollouts)

    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=[lambda earned, **_: earned],
            train_dataset=Dataset.from_dict({"prompt": ["t3", "t4"]}),
            processing_class=tokenizer,
            rollout_func=rollout_func,
            callbacks=[watch],
            args=GRPOConfig(
                output_dir=folder,
                num_generations=GROUP,
                per_device_train_batch_size=GROUP,
                steps_per_generation=2,
                max_steps=2,
                lr_scheduler_type="constant",
                max_grad_norm=OPTIMIZER["maxGradNorm"],
                adam_beta1=OPTIMIZER["beta1"],
                adam_beta2=OPTIMIZER["beta2"],
                adam_epsilon=OPTIMIZER["epsilon"],
                temperature=TEMPERATURE,
                # The KL term as the GRPO paper has it, without TRL's later correction.
                use_bias_correction_kl=False,
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=True,
                save_strategy="no",
                logging_steps=1,
                report_to="none",
                disable_tqdm=True,
                **asked,
            ),
        )
        trainer.train()
    steps = [{key: log[key] for key in ("loss", "grad_norm")} for log in trainer.state.log_history if "grad_norm" in log]
    clipped = [log.get("clip_ratio/region_mean") for log in trainer.state.log_history if "grad_norm" in log]
    for batch, group in zip(trainer._buffered_inputs, range(2), strict=True):
        lengths = sorted(batch["completion_mask"].sum(1).tolist())
        wanted = as_trl_takes_them(rollouts[GROUP * group : GROUP * (group + 1)])
        if lengths != sorted(map(len, wanted["completion_ids"])):
            sys.exit("TRL dealt the groups otherwise than we do; look for another draw before its shuffle")
    if not clipped[1] > 0.1:
        sys.exit(f"the second step clips {clipped[1]} of its tokens; the weights have to move further in the first")
    names = lambda gradients: {n.replace(".default", "").removeprefix("base_model.model."): g for n, g in gradients.items()}
    return steps, [names(each) for each in watch.gradients]


def near(a, b):
    """Float32 through a model: sums may be taken in another order on another machine."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(near(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(near(x, y) for x, y in zip(a, b))
    return abs(a - b) <= 1e-5 * max(1, abs(b)) if isinstance(a, float) else a == b


def main():
    rollouts = make_rollouts()
    made = {"optimizer": OPTIMIZER, "temperature": TEMPERATURE, "advantage": ADVANTAGE, "rollouts": rollouts, "cases": []}
    gradients = {}
    for name, method, asked, loss in CASES:
        steps, gradients[name] = train(rollouts, method, asked)
        config = {"importance": {"type": "none"}, **loss}
        made["cases"].append({"name": name, "method": method, "trl": asked, "loss": config, "steps": steps})
    made = json.loads(json.dumps(made))
    path = lambda name, step: FIXTURES / f"trl-step-{name}-{step}.safetensors"
    if "--check" in sys.argv:
        kept = json.loads((FIXTURES / "trl-step.json").read_text())
        kept.pop("trl")
        agree = near(made, kept)
        for name, of_steps in gradients.items():
            for step, now in enumerate(of_steps):
                then = load_file(path(name, step))
                agree = agree and now.keys() == then.keys()
                agree = agree and all(torch.allclose(now[k], then[k], rtol=1e-4, atol=1e-6) for k in now)
        if not agree:
            sys.exit(f"trl-step.json is not what TRL {trl.__version__} computes; run trl_step.py without --check and look")
        print("trl-step.json agrees")
        return
    (FIXTURES / "trl-step.json").write_text(json.dumps({"trl": trl.__version__, **made}, separators=(",", ":")) + "\n")
    for name, of_steps in gradients.items():
        for step, now in enumerate(of_steps):
            save_file(now, path(name, step))


if __name__ == "__main__":
    main()
