"""Writes a checkpoint's files, each whole or not at all, the manifest last."""

from __future__ import annotations

import errno
import hashlib
import json
from typing import Any, BinaryIO

import numpy as np

from howdah import storage
from howdah.errors import StorageError, StorageFull
from howdah.models.weights.tensors import write_tensors
from howdah.training.checkpoint.read import FORMAT_VERSION, MANIFEST, META, MODEL
from howdah.training.checkpoint.throttle import WriteThrottle


def bytes_needed(tensors: dict[str, np.ndarray]) -> int:
    """Upper bound of the bytes that a checkpoint of these tensors takes."""
    return sum(array.nbytes for array in tensors.values()) + 2**20


def write_files(
    directory: str,
    step: int,
    tensors: dict[str, np.ndarray],
    meta: dict[str, Any],
    throttle: WriteThrottle,
) -> dict[str, Any]:
    """Write all files but the manifest; tensors go through the throttle.

    If storage fails for a moment (a DataNode is lost in the middle of a block), the whole file is
    written again, since the arrays are in memory.

    Returns:
        The manifest's `format` and `files`.
    Raises:
        StorageError: the storage is full, refuses, or does not answer in time.
    """
    storage.make_dirs(directory)
    model = {name: array for name, array in tensors.items() if name.startswith(MODEL)}
    rest = {name: array for name, array in tensors.items() if not name.startswith(MODEL)}
    files: dict[str, dict] = {}
    for name, part in (("model.safetensors", model), ("optimizer.safetensors", rest)):
        files[name] = _write_part(storage.join(directory, name), part, throttle)
    data = _json(meta | {"step": step})
    storage.write_whole(storage.join(directory, META), data)
    files[META] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {"format": FORMAT_VERSION, "files": files}


def _write_part(path: str, part: dict[str, np.ndarray], throttle: WriteThrottle) -> dict[str, Any]:
    written: dict[str, Any] = {}

    def fill(file: BinaryIO) -> None:
        size, sha256 = write_tensors(throttle.wrap(file), part)
        written.update(bytes=size, sha256=sha256)

    size = sum(array.nbytes for array in part.values())
    storage.write_stream(path, fill, size=size)
    return written


def write_manifest(directory: str, manifest: dict[str, Any]) -> None:
    """Write the manifest, which makes the directory complete, though not yet under its name."""
    storage.write_whole(storage.join(directory, MANIFEST), _json(manifest))


def _json(value: dict) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


# ---------------------------------------------------------------------------------------- errors
def unsaved(error: StorageError | OSError, step: int, directory: str, needed: int) -> StorageError:
    """An error of the same class, which adds that `step` is not saved and older ones are intact."""
    if isinstance(error, StorageFull) or (
        isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    ):
        return no_room(step, directory, needed, error)
    typed = isinstance(error, StorageError)
    return (type(error) if typed else StorageError)(
        f"checkpoint step-{step} could not be saved; earlier checkpoints are intact",
        where=(error.where if typed else None) or directory,
        got=f"{error.what}: {error.got}" if typed and error.got else str(error),
        remedy="fix the storage and start again: the run resumes from the newest checkpoint",
    )


def no_room(
    step: int, directory: str, needed: int, error: StorageError | OSError | None = None
) -> StorageFull:
    """The error of a full disk or quota."""
    free = storage.free_bytes(directory)
    reasons = [error.got] if isinstance(error, StorageError) and error.got else []
    if free is not None and f"{_mib(free)} free" not in reasons:
        reasons.append(f"{_mib(free)} free")
    return (type(error) if isinstance(error, StorageFull) else StorageFull)(
        f"not enough space for checkpoint step-{step}; earlier checkpoints are intact",
        where=directory,
        expected=f"{_mib(needed)} free",
        got="; ".join(reasons) or "the quota or the disk is used up",
        remedy="free space, lower checkpoint.keep, or set another checkpoint.directory; then start"
        " again: the run resumes from the newest checkpoint",
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
