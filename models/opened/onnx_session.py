"""Runs an ONNX graph with onnxruntime, its weights mapped from the export's own file.

Nothing of a framework is imported. onnxruntime maps the weights itself where the file really lies
in the graph's directory. It refuses links out of it, and those are what YARN gives its containers:
such a file is mapped here, once and read-only, and its arrays are handed over; they cost more
memory (docs/decisions/exports.md).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from howdah import storage
from howdah.errors import ModelError
from howdah.models.forward.forward_onnx import IDS, LOGITS, MASK
from howdah.models.weights.tensors import FormatError, read_tensors

_FOLDER = "session.model_external_initializers_file_folder_path"
_ERROR = 3
"""onnxruntime's severity: warnings are about its own optimisations."""


def mapped_tensors(path: str) -> dict[str, np.ndarray]:
    """The tensors of a local safetensors file, read-only views of one mapping of it.

    Raises:
        ModelError: the file is not whole, or not of float32.
    """
    try:
        with open(storage.local_path(path), "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        tensors = read_tensors(memoryview(data))
    except (FormatError, ValueError) as error:  # ValueError: mmap of an empty file
        raise ModelError(
            "weights are not a whole safetensors file",
            where=path,
            got=str(error),
            remedy="copy the file again; it may have been cut short",
        ) from None
    return tensors


def open_session(
    graph: bytes | str,
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    folder: str | None = None,
    threads: int,
    where: str,
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """(ids_BT, mask_BT) -> logits_BC float32, on the CPU.

    Args:
        graph: a serialised ModelProto, or the path of a file with one.
        weights: the initializers that the graph names in another file, all of them; kept as long
            as the result is. None: onnxruntime reads them.
        folder: where the graph's other file is, if `graph` is not a path and has one; no link.
        threads: compute threads.
        where: the model, for messages.
    Raises:
        ModelError: onnxruntime does not take the graph with these weights.
    """
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERROR
    # Threads that wait for work sleep: spinning takes the cores that other processes need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if folder is not None:
        options.add_session_config_entry(_FOLDER, storage.local_path(folder))
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for name, array in (weights or {}).items()
    }
    try:
        if values:
            options.add_external_initializers(list(values), list(values.values()))
        session: Any = onnxruntime.InferenceSession(
            graph, options, providers=["CPUExecutionProvider"]
        )
    except (
        errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.InvalidProtobuf,
        errors.NoSuchFile, errors.NotImplemented, errors.RuntimeException,
    ) as error:  # fmt: skip
        raise ModelError(
            "onnxruntime does not take the model",
            where=where,
            got=str(error).splitlines()[0],
            remedy="`howdah export` writes the run's export again",
        ) from error

    return _Opened(session, values)


@dataclass(frozen=True)
class _Opened:
    session: Any
    weights: Mapping[str, Any]
    """Kept, since the session reads their memory and holds no reference to it."""

    def __call__(self, ids_BT: np.ndarray, mask_BT: np.ndarray) -> np.ndarray:
        given = {IDS: ids_BT.astype(np.int64), MASK: mask_BT.astype(np.int64)}
        return self.session.run([LOGITS], given)[0]
