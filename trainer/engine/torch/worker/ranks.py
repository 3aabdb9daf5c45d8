"""The processes that share one model, a device each: what one knows of the others."""

import os

from datetime import timedelta

import torch
import torch.distributed as dist

# Between two commands a rank may wait for as long as rollouts take; one that has died is told by its socket.
PATIENCE = timedelta(days=30)


class Ranks:
    """This process among its like, as torchrun's environment variables say."""

    def __init__(self, device: str) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device(device, local) if device == "cuda" else torch.device(device)
        if device == "cuda":
            torch.cuda.set_device(self.device)
        if self.count > 1:
            dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", timeout=PATIENCE)

    def share(self, body: bytes | None) -> bytes:
        """The first rank's bytes, everywhere."""
        if self.count == 1:
            assert body is not None
            return body
        length = torch.tensor([0 if body is None else len(body)])
        dist.broadcast(length, 0)
        content = torch.empty(int(length), dtype=torch.uint8)
        if body is not None:
            content = torch.frombuffer(bytearray(body), dtype=torch.uint8)
        dist.broadcast(content, 0)
        return content.numpy().tobytes()

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor
