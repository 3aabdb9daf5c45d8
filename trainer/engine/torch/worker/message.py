"""A frame's body as a message and tensors, and back."""

import json

from typing import Any

import torch
from safetensors.torch import load, save

from .channel import LENGTH, bare

Tensors = dict[str, torch.Tensor]


def decode(body: bytes) -> tuple[dict[str, Any], Tensors]:
    (length,) = LENGTH.unpack(body[: LENGTH.size])
    header = json.loads(bytes(body[LENGTH.size : LENGTH.size + length]))
    tensors = load(bytes(body)) if len(header) > 1 else {}
    return json.loads(header["__metadata__"]["message"]), tensors


def encode(message: dict[str, Any], tensors: Tensors) -> bytes:
    if len(tensors) == 0:
        return bare(message)
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save(whole, {"message": json.dumps(message)})
