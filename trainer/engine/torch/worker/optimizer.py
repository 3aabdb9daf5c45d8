"""AdamW over what is trained, with the global norm that clipping needs."""

import math

from typing import Any

import torch
from torch import Tensor, nn

from .ranks import Ranks
from .shards import is_spread, own_part

VALUE_BIAS = "value_head.bias"


class Optimizer:
    def __init__(self, trained: dict[str, nn.Parameter], ranks: Ranks, options: dict[str, Any], width: int) -> None:
        self.trained = trained
        self.ranks = ranks
        constants = options["optimizer"]
        groups = [
            {
                "params": [parameter],
                "weight_decay": float(constants["weightDecay"]) if parameter.ndim > 1 else 0.0,
                # The critic's bias keeps pace with its weights (../../value-head.ts).
                "rate_factor": width if name == VALUE_BIAS else 1,
            }
            for name, parameter in trained.items()
        ]
        # JSON has no floats: 0.0 comes as 0, which AdamW refuses beside 0.999.
        betas = (float(constants["beta1"]), float(constants["beta2"]))
        self.adamw = torch.optim.AdamW(merged(groups), betas=betas, eps=float(constants["epsilon"]), fused=True)
        for parameter in trained.values():
            # Before the first step too: a checkpoint of it has moments like any other.
            self.adamw.state[parameter] = {
                "step": torch.zeros((), device=own_part(parameter).device),
                "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
            }

    def moments(self, which: str) -> dict[str, Tensor]:
        """First (exp_avg) or second (exp_avg_sq) moments by the names of what they belong to."""
        return {name: self.adamw.state[parameter][which] for name, parameter in self.trained.items()}

    def set_step(self, step: int) -> None:
        for parameter in self.trained.values():
            self.adamw.state[parameter]["step"].fill_(step)

    def forget(self) -> None:
        """Drops the accumulated gradient."""
        for parameter in self.trained.values():
            parameter.grad = None

    def step(self, learning_rate: float, max_norm: float) -> float:
        """
        Clips, steps and drops the gradient.
        :returns: its norm before clipping; where that is not finite, nothing was changed
        """
        for parameter in self.trained.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        norm = self._gather()
        if math.isfinite(norm):
            if norm > max_norm:
                torch._foreach_mul_(self._own_gradients(), max_norm / (norm + 1e-6))
            for group in self.adamw.param_groups:
                group["lr"] = learning_rate * group["rate_factor"]
            self.adamw.step()
        self.forget()
        return norm

    def _gather(self) -> float:
        """Adds up over the ranks what is not added up yet, and returns the norm of all."""
        spread, replicated = [], []
        for parameter in self.trained.values():
            assert parameter.grad is not None
            (spread if is_spread(parameter.grad) else replicated).append(own_part(parameter.grad))
        if self.ranks.count > 1 and replicated:
            flat = self.ranks.add_up(torch.cat([each.flatten() for each in replicated]))
            for each, total in zip(replicated, flat.split([each.numel() for each in replicated])):
                each.copy_(total.view_as(each))
        squares = squares_of(spread)
        if spread:
            self.ranks.add_up(squares)
        return math.sqrt(float(squares + squares_of(replicated))) if self.trained else 0.0

    def _own_gradients(self) -> list[Tensor]:
        return [own_part(each.grad) for each in self.trained.values() if each.grad is not None]


def merged(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups of the same settings as one: a step is a kernel for each group, which takes either all spread or none."""
    found: dict[tuple[float, float, bool], dict[str, Any]] = {}
    for group in groups:
        key = (group["weight_decay"], group["rate_factor"], is_spread(group["params"][0]))
        found.setdefault(key, {**group, "params": []})["params"].extend(group["params"])
    return list(found.values())


def squares_of(tensors: list[Tensor]) -> Tensor:
    """The sum of the squares of all entries, in float64."""
    if len(tensors) == 0:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack(torch._foreach_norm(tensors)).double().square().sum().cpu()
