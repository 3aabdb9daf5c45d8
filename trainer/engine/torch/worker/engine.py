"""What the trainer can ask of an opened model. Every rank runs every command, and all get to its end or none."""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from .channel import Failure
from .message import Tensors
from .optimizer import Optimizer
from .policy import Batch, Policy
from .ranks import Ranks
from .shards import put, spread, whole

# A checkpoint's files (../../checkpoint.ts), and what AdamW calls what is in them.
WEIGHTS = "weights.safetensors"
MOMENTS = {"first-moments.safetensors": "exp_avg", "second-moments.safetensors": "exp_avg_sq"}


class Engine:
    def __init__(self, options: dict[str, Any], tensors: Tensors, ranks: Ranks) -> None:
        self.ranks = ranks
        self.policy = Policy(options, tensors).to(ranks.device)
        if ranks.count > 1:
            spread(self.policy, ranks)
        # Adapters' dropout and gradient checkpointing are only there in training; nothing else tells the modes apart.
        self.policy.train()
        self.dropout = self.policy.adapted and options["method"]["dropout"] > 0
        self.optimizer = Optimizer(self.policy.trained(), ranks, options, self.policy.causal.config.hidden_size)

    def score(self, message: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
        self.policy.train(not self.dropout)
        with torch.no_grad():
            return self._run(message, tensors)

    def backward(self, message: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
        self.policy.train()
        if self.dropout:
            torch.manual_seed(message["seed"] + self.ranks.rank)
        return self._run(message, tensors)

    def step(self, message: dict[str, Any], _: Tensors) -> tuple[dict[str, Any], Tensors]:
        limit = message["maxGradNorm"]
        norm = self.optimizer.step(message["learningRate"], float("inf") if limit is None else limit)
        # JSON has no words for what is not finite.
        return {"gradNorm": {"inf": "Infinity", "nan": "NaN"}.get(repr(norm), repr(norm))}, {}

    def save(self, message: dict[str, Any], _: Tensors) -> tuple[dict[str, Any], Tensors]:
        for file, tensors in self._state().items():
            gathered = {name: whole(tensor) for name, tensor in tensors.items()}
            if self.ranks.rank == 0:
                save_file(gathered, Path(message["dir"]) / file, {"format": "pt"})
        return {}, {}

    def load(self, message: dict[str, Any], _: Tensors) -> tuple[dict[str, Any], Tensors]:
        state = self._state()
        for file, tensors in state.items():
            self._check(Path(message["dir"]) / file, tensors)
        for file, tensors in state.items():
            with safe_open(Path(message["dir"]) / file, "pt") as stored:
                for name, tensor in tensors.items():
                    put(tensor, stored.get_tensor(name))
        self.optimizer.set_step(message["step"])
        self.optimizer.forget()
        return {}, {}

    def adapter(self, _: dict[str, Any], __: Tensors) -> tuple[dict[str, Any], Tensors]:
        return {}, {name: whole(tensor) for name, tensor in self.policy.trained().items() if ".lora_" in name}

    def export(self, message: dict[str, Any], _: Tensors) -> tuple[dict[str, Any], Tensors]:
        weights = {}
        for name, parameter in self.policy.causal.named_parameters():
            if ".lora_" in name:
                continue
            weight = whole(parameter).float()
            path = name.removesuffix(".base_layer.weight")
            if path != name:
                weight = weight + self._adapter_product(path)
            weights[name.replace(".base_layer.", ".")] = weight.contiguous()
        if self.ranks.rank == 0:
            save_file(weights, message["path"], {"format": "pt"})
        return {}, {}

    def _adapter_product(self, path: str) -> Tensor:
        layer = self.policy.causal.get_submodule(path)
        factors = (whole(layer.lora_B["default"].weight), whole(layer.lora_A["default"].weight))
        return layer.scaling["default"] * (factors[0] @ factors[1])

    def _run(self, message: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
        """Runs this rank's batches; scores of the others' are added from them, each having zeros where it has none."""
        sizes = message["batches"]
        total = sum(size["targets"] for size in sizes)
        names = ["logprobs", "entropy", *(["values"] if self.policy.value_head is not None else [])]
        results = {name: torch.zeros(total) for name in names}
        batches = cut(sizes, tensors)
        own = [i for i, size in enumerate(sizes) if size["rank"] == self.ranks.rank]
        rounds = max((sum(size["rank"] == rank for size in sizes) for rank in range(self.ranks.count)), default=0)
        for turn in range(rounds):
            # Weights are gathered and gradients added in each pass, so all ranks take as many; what is left is idle.
            at = own[turn] if turn < len(own) else None
            part, batch = batches[at] if at is not None else (slice(0, 0), idle(tensors))
            scores = self.policy(Batch(*(None if each is None else each.to(self.ranks.device) for each in batch)))
            if torch.is_grad_enabled():
                scores.surrogate.backward()
            if at is None:
                continue
            results["logprobs"][part] = scores.logprobs_M.cpu()
            results["entropy"][part] = scores.entropy_M.cpu()
            if scores.values_M is not None:
                results["values"][part] = scores.values_M.detach().cpu()
        return {}, {name: self.ranks.add_up(result) for name, result in results.items()}

    def _state(self) -> dict[str, dict[str, Tensor]]:
        trained = self.policy.trained()
        return {WEIGHTS: dict(trained), **{file: self.optimizer.moments(which) for file, which in MOMENTS.items()}}

    def _check(self, path: Path, wanted: dict[str, Tensor]) -> None:
        with safe_open(path, "pt") as stored:
            names = set(stored.keys())
            for name, tensor in wanted.items():
                shape = stored.get_slice(name).get_shape() if name in names else None
                if shape != list(tensor.shape):
                    raise Failure(
                        "ERR_CHECKPOINT",
                        f"{path} has shape {shape} for {name}, and this model wants {list(tensor.shape)}; "
                        "it belongs to another model or method.",
                    )


def cut(sizes: list[dict[str, int]], tensors: Tensors) -> list[tuple[slice, Batch]]:
    """The batches of a message, whose arrays lie one after another, and where their targets lie in the result."""
    batches = []
    token, target = 0, 0
    for size in sizes:
        tokens = slice(token, token + size["rows"] * size["time"])
        part = slice(target, target + size["targets"])
        pulls = (None if name not in tensors else tensors[name][part] for name in ("dLogprobs", "dEntropy", "dValues"))
        batches.append(
            (
                part,
                Batch(
                    tensors["tokens"][tokens].view(size["rows"], size["time"]).long(),
                    tensors["rows"][part].long(),
                    tensors["targets"][part].long(),
                    *pulls,
                ),
            )
        )
        token, target = tokens.stop, part.stop
    return batches


def idle(tensors: Tensors) -> Batch:
    """A batch that pulls at nothing, for a rank that has none left."""
    pulls = (torch.zeros(1) if name in tensors else None for name in ("dLogprobs", "dEntropy", "dValues"))
    one = torch.zeros(1, dtype=torch.long)
    return Batch(torch.zeros(1, 2, dtype=torch.long), one, one, *pulls)
