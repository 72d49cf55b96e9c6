"""Writes TensorBoard event files, only scalars, without a framework.

tensorboardX and torch.utils.tensorboard import torch (and TensorBoard's writer imports TensorFlow),
which would load two frameworks into one process. A scalar is a dozen bytes of protobuf in TFRecord
framing, which Howdah has anyway.

Source: tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.
"""

from __future__ import annotations

import os
import socket
import time

from howdah.core.protobuf_wire import bytes_field, double_field, float_field, varint_field
from howdah.data.record import frame

_FLUSH_SECONDS = 5.0

# Field numbers of Event, Summary, Summary.Value and SessionLog.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2
_STATUS, _START = 1, 1


class EventFile:
    """One event file of a directory that TensorBoard reads.

    Args:
        directory: local directory; created if missing.
        resumed_at: step that the run resumes from; TensorBoard then drops later points of earlier
            files.
    """

    def __init__(self, directory: str, resumed_at: int = 0) -> None:
        os.makedirs(directory, exist_ok=True)
        # The name sorts by time, since TensorBoard reads files in the order of their names.
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(os.path.join(directory, name), "ab", buffering=0)  # noqa: SIM115 - kept
        self._waiting = bytearray()
        self._flushed = time.monotonic()
        self._event(0, bytes_field(_FILE_VERSION, b"brain.Event:2"))
        if resumed_at:
            self.resume(resumed_at)
        self._flush()

    def resume(self, step: int) -> None:
        """Make TensorBoard drop the points so far that lie after `step`."""
        self._event(step + 1, bytes_field(_SESSION_LOG, varint_field(_STATUS, _START)))

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Add the values of a step; they reach the file within seconds, or at `close`."""
        summary = b"".join(
            bytes_field(
                _VALUE, bytes_field(_TAG, name.encode()) + float_field(_SIMPLE_VALUE, value)
            )
            for name, value in values.items()
        )
        self._event(step, bytes_field(_SUMMARY, summary))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._file.close()

    def abandon(self) -> None:
        """Close the file without the values that have not been written yet."""
        self._waiting.clear()
        self._file.close()

    def _flush(self) -> None:
        data = memoryview(bytes(self._waiting))
        self._waiting.clear()
        while data:
            data = data[self._file.write(data) :]
        self._flushed = time.monotonic()

    def _event(self, step: int, what: bytes) -> None:
        head = double_field(_WALL_TIME, time.time()) + varint_field(_STEP, step)
        self._waiting += frame(head + what)
