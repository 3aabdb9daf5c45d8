"""Starts one rank of the worker: python -m worker --device auto|cpu|cuda

The trainer's socket is file descriptor 3. RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are as torchrun
sets them; without them the rank is alone.
"""

import argparse
import signal

from .channel import Channel, Failure


def main() -> None:
    # The trainer decides when its worker ends; a Ctrl-C in its terminal reaches this process too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], required=True)
    device = parser.parse_args().device
    channel = Channel(3)
    try:
        # Takes seconds, and a trainer that is gone by then must be noticed.
        from .serve import serve

        serve(channel, device)
    except ImportError as error:
        channel.fail(Failure("ERR_PLATFORM", f"Python cannot import {error.name or 'a package'} ({error})."))
    except Failure as failure:
        channel.fail(failure)
    except BaseException as error:
        channel.fail(described(error))
        raise


def described(error: BaseException) -> Failure:
    """What ended the worker, in a sentence for the trainer's log."""
    text = f"{type(error).__name__}: {error}".split("\n")[0][:500]
    # torch may not be there to be asked for its own kinds; its allocator for the CPU has none.
    out_of_memory = type(error).__name__ in ("OutOfMemoryError", "MemoryError") or "DefaultCPUAllocator" in text
    if out_of_memory:
        return Failure("ERR_PLATFORM", f"The device is out of memory ({text}).", out_of_memory=True)
    if "Connection closed by peer" in text or "Connection reset by peer" in text or "DistBackendError" in text:
        said = text.split(" This is typically")[0]
        return Failure(
            "ERR_INTERNAL",
            f"Another rank of the torch worker is gone, or not to be reached any more ({said}). "
            "Start the trainer again: it goes on from its last checkpoint.",
        )
    return Failure("ERR_INTERNAL", f"{text}.")


main()
