"""Runs an ONNX graph with onnxruntime, with the weights mapped from the export's file.

No framework is imported. onnxruntime maps the weights itself if the file lies in the graph's
directory. It refuses links that lead out of it, and YARN localises files in containers as such
links: such a file is mapped here, once and read-only, and its arrays are passed to onnxruntime,
which costs more memory (docs/decisions/exports.md).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from howdah import storage
from howdah.errors import ModelError
from howdah.models.forward.forward_onnx import IDS, LOGITS, MASK
from howdah.models.weights.tensors import FormatError, read_tensors

_FOLDER = "session.model_external_initializers_file_folder_path"
_ERROR = 3
"""onnxruntime's log severity: its warnings only concern its internal optimisations."""


def mapped_tensors(path: str) -> dict[str, np.ndarray]:
    """The tensors of a local safetensors file as read-only views of one mapping.

    Raises:
        ModelError: the file is truncated, or has types that are not supported.
    """
    try:
        with open(storage.local_path(path), "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        tensors = read_tensors(memoryview(data))
    except (FormatError, ValueError) as error:  # ValueError: mmap of an empty file
        raise ModelError(
            "the weights are not a complete safetensors file; copy the file again",
            where=path,
            got=str(error),
        ) from None
    return tensors


def open_session(
    graph: bytes | str,
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    folder: str | None = None,
    classes: int | None = None,
    threads: int,
    where: str,
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """(ids_BT, mask_BT) -> logits_BC float32, on the CPU.

    Args:
        graph: a serialised ModelProto, or the path of a file with one.
        weights: all initializers that the graph names in another file; they live as long as the
            result. None: onnxruntime reads them.
        folder: the directory of the graph's other file, if `graph` is bytes and names one; the
            file must not be a link.
        classes: number of logits of a row that the graph must have; None: any.
        threads: compute threads.
        where: the model, for messages.
    Raises:
        ModelError: onnxruntime does not accept the graph with these weights, or it has another
            number of logits.
    """
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERROR
    # Idle threads sleep: spinning would take the cores that other processes need.
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
        *(errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.InvalidProtobuf),
        *(errors.NoSuchFile, errors.NotImplemented, errors.RuntimeException),
    ) as error:
        raise ModelError(
            "onnxruntime cannot load the model",
            where=where,
            got=str(error).splitlines()[0],
            remedy="`howdah export` writes the run's export again",
        ) from error

    logits = session.get_outputs()[0].shape[-1]
    if classes is not None and logits != classes:
        raise ModelError(
            "the labels of config.json are not those of the model",
            where=storage.join(where, "config.json"),
            expected=f"{logits} labels",
            got=f"{classes} in id2label",
            remedy="restore the export's files, or `howdah export` writes the run's export again",
        )

    def forward(ids_BT: np.ndarray, mask_BT: np.ndarray) -> np.ndarray:
        inputs = {IDS: ids_BT.astype(np.int64), MASK: mask_BT.astype(np.int64)}
        return session.run([LOGITS], inputs)[0]

    # The session reads the arrays' memory, but holds no reference to them.
    forward.weights = values
    return forward
