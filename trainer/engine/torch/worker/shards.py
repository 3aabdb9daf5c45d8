"""The model's weights spread over the ranks by FSDP2."""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from .policy import Policy
from .ranks import Ranks


def spread(policy: Policy, ranks: Ranks) -> None:
    """
    Shards the decoder by layers. An adapter and a critic are small and stay whole on each rank; the optimizer adds up
    their gradients itself.
    """
    mesh = init_device_mesh(ranks.device.type, (ranks.count,))
    small = {each for name, each in policy.named_parameters() if ".lora_" in name or name.startswith("value_head.")}
    precision = MixedPrecisionPolicy(param_dtype=policy.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in (*policy.trunk.layers, policy):
        fully_shard(module, mesh=mesh, mp_policy=precision, ignored_params=small)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            # Cotangents carry their weights: gradients of the ranks' shares are added, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def is_spread(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor)


def own_part(tensor: Tensor) -> Tensor:
    """What of it lies on this rank; a view."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of it in the processor's memory; every rank has to ask."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def put(into: Tensor, value: Tensor) -> None:
    """Copies a whole tensor that every rank has into one that may be spread."""
    with torch.no_grad():
        if isinstance(into, DTensor):
            value = value.to(device=into.device, dtype=into.dtype)
            # Each rank cuts its own part: nothing is sent.
            value = distribute_tensor(value, into.device_mesh, into.placements, src_data_rank=None)
        into.copy_(value)
