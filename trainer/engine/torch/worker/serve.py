"""Answers the trainer's commands, one after another. The first rank hears them and tells the others."""

import torch

from .channel import Channel, Failure
from .engine import Engine
from .message import decode, encode
from .ranks import Ranks

COMMANDS = {"score", "backward", "step", "save", "load", "adapter", "export"}


def serve(channel: Channel, device: str) -> None:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        asked = "--device cuda was asked for"
        raise Failure("ERR_CONFIG", f"{asked}, and PyTorch {torch.__version__} finds no CUDA device here.")
    ranks = Ranks(device)
    engine: Engine | None = None
    while True:
        message, tensors = decode(ranks.share(channel.receive() if ranks.rank == 0 else None))
        command = message["command"]
        try:
            if command == "open":
                torch.set_num_threads(message["threads"])
                engine = None
                options = message["options"]
                options["precision"] = options["precision"] or ("bf16" if device == "cuda" else "fp32")
                engine = Engine(options, tensors, ranks)
                answer, results = {"device": device, "precision": options["precision"]}, {}
            else:
                assert engine is not None and command in COMMANDS
                answer, results = getattr(engine, command)(message, tensors)
        except Failure as failure:
            # All ranks have come to it alike, and nothing was changed.
            if ranks.rank == 0:
                channel.fail(failure)
            continue
        if ranks.rank == 0:
            channel.send(encode(answer, results))

