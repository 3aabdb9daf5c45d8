"""Frames to and from the trainer over a socket, and the promise that the worker does not outlive it.

A frame is its length as a little-endian u64 and a safetensors file whose metadata holds the message as JSON.
"""

import json
import os
import queue
import socket
import struct
import threading

from typing import Any

LENGTH = struct.Struct("<Q")


class Failure(Exception):
    """
    Something the trainer is told of by code. Raised by a command before it has changed anything, it is only its answer.
    """

    def __init__(self, code: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.code = code
        self.facts = facts


class Channel:
    """The socket. A thread reads it from the first moment on and ends the process where the trainer is gone."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        self.frames: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def receive(self) -> bytes:
        """The next frame's body; waits for it."""
        return self.frames.get()

    def send(self, body: bytes) -> None:
        self.socket.sendall(LENGTH.pack(len(body)))
        self.socket.sendall(body)

    def fail(self, failure: Failure) -> None:
        """Answers with an error. It needs no tensors, so that it can tell of a missing torch too."""
        self.send(bare({"error": {"code": failure.code, "message": str(failure), **failure.facts}}))

    def _read(self) -> None:
        try:
            while True:
                (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
                self.frames.put(self._exactly(length))
        except (OSError, EOFError):
            # At once, whatever the other threads are at: nobody wants their result any more.
            os._exit(0)

    def _exactly(self, length: int) -> bytearray:
        body = bytearray(length)
        view = memoryview(body)
        while len(view) > 0:
            count = self.socket.recv_into(view)
            if count == 0:
                raise EOFError
            view = view[count:]
        return body


def bare(message: dict[str, Any]) -> bytes:
    """A frame's body without tensors."""
    header = json.dumps({"__metadata__": {"message": json.dumps(message)}}).encode()
    header += b" " * (-len(header) % 8)
    return LENGTH.pack(len(header)) + header
