"""TensorBoard event files, written by hand: scalars alone, and no framework.

tensorboardX and torch.utils.tensorboard import torch (and TensorBoard's own writer TensorFlow),
which would put two frameworks into one process. A scalar is a dozen bytes of protobuf in TFRecord
framing, which is here already.

Source: tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.
"""

from __future__ import annotations

import os
import socket
import struct
import time

from howdah.record import frame

__all__ = ["EventFile"]

_FLUSH_SECONDS = 5.0

# Tags: field number << 3 | wire type (0 varint, 1 64 bit, 2 bytes, 5 32 bit).
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 0x09, 0x10, 0x1A, 0x2A, 0x3A
_VALUE, _TAG, _SIMPLE_VALUE = 0x0A, 0x0A, 0x15
_STATUS_START = b"\x08\x01"  # SessionLog.status = START


class EventFile:
    """One event file of a directory that TensorBoard reads.

    Args:
        directory: local directory; made if missing.
        resumed_at: step that the run goes on from; TensorBoard then drops later points of files
            before this one.
    """

    def __init__(self, directory: str, resumed_at: int = 0) -> None:
        os.makedirs(directory, exist_ok=True)
        # The name sorts by time, which is the order that TensorBoard reads files in.
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(os.path.join(directory, name), "ab")  # noqa: SIM115 - kept open
        self._flushed = time.monotonic()
        self._event(0, bytes([_FILE_VERSION]) + _sized(b"brain.Event:2"))
        if resumed_at:
            self.go_on(resumed_at)

    def go_on(self, step: int) -> None:
        """Have TensorBoard drop what came before this line and lies after `step`."""
        self._event(step + 1, bytes([_SESSION_LOG]) + _sized(_STATUS_START))

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Add the values of a step; they reach the file within seconds, or at `close`."""
        summary = b"".join(
            bytes([_VALUE]) + _sized(
                bytes([_TAG]) + _sized(name.encode())
                + bytes([_SIMPLE_VALUE]) + struct.pack("<f", value)
            )
            for name, value in values.items()
        )  # fmt: skip
        self._event(step, bytes([_SUMMARY]) + _sized(summary))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._file.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def _event(self, step: int, what: bytes) -> None:
        head = bytes([_WALL_TIME]) + struct.pack("<d", time.time()) + bytes([_STEP]) + _varint(step)
        self._file.write(frame(head + what))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data
