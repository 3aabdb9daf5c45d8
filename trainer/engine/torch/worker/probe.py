"""Prints as JSON what of the worker's needs this Python has: python trainer/engine/torch/worker/probe.py PACKAGE…

It imports none of them but torch, to ask it for a GPU, so that what is broken can still be named.
"""

import json
import platform
import sys

from importlib.metadata import PackageNotFoundError, version


def found(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def gpus() -> list[str]:
    try:
        import torch

        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    except Exception:
        return []


packages = {package: found(package) for package in sys.argv[1:]}
devices = gpus() if packages.get("torch") else []
print(json.dumps({"python": platform.python_version(), "packages": packages, "gpus": devices}))
