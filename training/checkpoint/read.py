"""Reads checkpoints: nothing is used before its size and SHA-256 are verified."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from howdah import storage
from howdah.errors import CheckpointError, DataError, NotFound
from howdah.models.runs.identity import Identity, check_identity, check_plan
from howdah.models.weights.tensors import FormatError, read_tensors, stored_tensors
from howdah.storage import commit
from howdah.storage.shapes import COUNT, NUMBER, TEXT, Each, Fields, fault
from howdah.training.checkpoint.throttle import WriteThrottle

FORMAT_VERSION = 1
MANIFEST, META = "manifest.json", "meta.json"
MODEL, ADAM_M, ADAM_V = "model/", "adam_m/", "adam_v/"
"""Prefixes of tensor names: weights, AdamW's first and second moments."""

_MANIFEST_SHAPE = Fields(
    {
        "format": COUNT,
        "step": COUNT,
        "files": Each(Fields({"bytes": COUNT, "sha256": TEXT}, needed=("bytes", "sha256"))),
        "score": NUMBER,
        "unix_time": NUMBER,
    },
    needed=("format", "step", "files"),
)
_STEP = re.compile(r"^step-(\d+)$")
_OTHER = (
    "name another step-N directory; `howdah train --set checkpoint.resume=auto` uses the newest"
    " complete checkpoint"
)
_READ_BYTES = 16 * 2**20
_THROTTLED_BYTES = 2 * 2**20


@dataclass(frozen=True)
class Saved:
    """A listed checkpoint, whose tensors are not read."""

    step: int
    path: str
    score: float | None
    """Validation score at this step, greater is better; None: not evaluated."""
    unix_time: float
    """Time at which it was written, seconds since 1970."""
    manifest: dict


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified."""

    step: int
    path: str
    tensors: dict[str, np.ndarray]
    """Arrays by name; StoredArray after `load(when_used=True)`."""
    meta: dict

    @property
    def of_base(self) -> list[str]:
        """Names of the weights that it leaves out, since they are those of the base model, whose
        hash is in its identity."""
        return self.meta.get("of_base", [])


class Corrupt(CheckpointError):
    """Files differ from the manifest, or there is no manifest."""


def load(path: str, expect: Identity | None = None, *, when_used: bool = False) -> Checkpoint:
    """Read and verify one checkpoint.

    Args:
        when_used: the files are verified now, but tensors (StoredArray) are read on use, so that
            the whole is never in memory.
    Raises:
        Corrupt: a file is missing, truncated or altered.
        CheckpointError: there is no checkpoint, or it has another format, model, dataset or plan.
    """
    if not storage.is_dir(path):
        raise CheckpointError(
            "there is no such checkpoint",
            where=path,
            expected="a step-N directory",
            remedy=_OTHER,
        )
    manifest = read_manifest(path)
    if manifest["format"] != FORMAT_VERSION:
        raise CheckpointError(
            f"the checkpoint has format {manifest['format']} instead of {FORMAT_VERSION}",
            where=path,
            remedy="use the version of Howdah that wrote it, or `--set checkpoint.resume=never`",
        )
    # Checked first, so that a checkpoint of another run is refused without reading its files.
    if expect is not None:
        check_identity(path, manifest, expect)
    tensors: dict[str, np.ndarray] = {}
    meta: dict = {}
    for name, entry in manifest["files"].items():
        in_memory = name == META or not when_used
        data = _read_verified(path, name, entry, keep=in_memory)
        try:
            if name == META:
                meta = json.loads(bytes(data))
            elif in_memory:
                tensors |= read_tensors(data)
            else:
                read = _reader(path, name)
                tensors |= stored_tensors(read, entry["bytes"])
        except (FormatError, ValueError) as error:
            raise _corrupt(path, f"{name}: {error}") from None
    if expect is not None:
        check_plan(path, manifest, meta, expect)
    return Checkpoint(int(manifest["step"]), path, tensors, meta)


def model_weights(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A checkpoint's weights by the model's names, without the prefix MODEL."""
    return {
        name.removeprefix(MODEL): array for name, array in tensors.items() if name.startswith(MODEL)
    }


def read_manifest(path: str) -> dict:
    """The manifest of a `step-N` directory; raises Corrupt if it is missing or malformed."""
    try:
        manifest = storage.read_json(storage.join(path, MANIFEST))
    except NotFound:
        raise _corrupt(path, "no manifest.json") from None
    except DataError:
        raise _corrupt(path, "manifest.json is not JSON") from None
    problem = fault(manifest, _MANIFEST_SHAPE)
    if problem is not None:
        raise _corrupt(path, f"manifest.json: {problem.key or 'all of it'} is {problem.got}")
    if any("/" in name for name in manifest["files"]):
        raise _corrupt(path, "manifest.json lists a file in another directory")
    return manifest


def saved_in(directory: str) -> list[Saved]:
    """Every `step-N` directory, newest first; one without a readable manifest has manifest {}."""
    try:
        entries = storage.list_dir(directory)
    except NotFound:
        return []
    checkpoints = []
    for entry in entries:
        match = _STEP.match(entry.name)
        if not match or not entry.is_dir:
            continue
        try:
            manifest = read_manifest(entry.path)
        except Corrupt:
            manifest = {}
        checkpoints.append(
            Saved(
                step=int(match[1]),
                path=entry.path,
                score=manifest.get("score"),
                unix_time=manifest.get("unix_time", 0.0),
                manifest=manifest,
            )
        )
    return sorted(checkpoints, key=lambda saved: -saved.step)


def size_defect(saved: Saved) -> str | None:
    """Description of a file whose size differs from the manifest; None if all agree."""
    if not saved.manifest:
        return "no readable manifest.json"
    sizes = {name: entry["bytes"] for name, entry in saved.manifest["files"].items()}
    defect = commit.size_defect(saved.path, sizes)
    return None if defect is None else str(defect)


def verify(path: str, manifest: dict, throttle: WriteThrottle | None = None) -> None:
    """Read a checkpoint back and compare sizes and hashes; raises Corrupt.

    Args:
        throttle: throttle of the background save that wrote it, which also slows reading.
    """
    for name, entry in manifest["files"].items():
        _read_verified(path, name, entry, keep=False, throttle=throttle)


def _read_verified(
    path: str, name: str, entry: dict, *, keep: bool = True, throttle: WriteThrottle | None = None
) -> bytearray:
    """A file's bytes, after their size and hash are checked; with `keep=False` an empty array."""
    file_path, expected = storage.join(path, name), entry["bytes"]
    try:
        size = storage.size(file_path)
        if size != expected:
            raise _corrupt(path, f"{name} has {size} bytes instead of {expected}")
        data = bytearray(expected if keep else 0)
        window = memoryview(data) if keep else memoryview(bytearray(_READ_BYTES))
        digest, done = hashlib.sha256(), 0
        piece = _READ_BYTES if throttle is None else _THROTTLED_BYTES
        with storage.open_read(file_path) as file:
            while done < expected:
                start = done if keep else 0
                got = file.readinto(window[start : start + min(piece, expected - done)])
                if not got:
                    raise _corrupt(path, f"{name} ends after {done} bytes instead of {expected}")
                digest.update(window[start : start + got])
                done += got
                if throttle is not None:
                    throttle.passed(got)
    except NotFound:
        raise _corrupt(path, f"{name} is missing") from None
    if digest.hexdigest() != entry["sha256"]:
        raise _corrupt(
            path, f"{name} has SHA-256 {digest.hexdigest()[:16]}..., not {entry['sha256'][:16]}..."
        )
    return data


def _reader(path: str, name: str) -> Callable[[int, int], bytes]:
    """A function that reads parts of a verified file, which stays open as long as it is used."""
    file = storage.open_read(storage.join(path, name))

    def read(offset: int, count: int) -> bytes:
        file.seek(offset)
        data = bytearray(count)
        view, done = memoryview(data), 0
        while done < count:
            got = file.readinto(view[done:])
            if not got:
                raise _corrupt(path, f"{name} was truncated since, at byte {offset + done}")
            done += got
        return data

    return read


def _corrupt(path: str, got: str) -> Corrupt:
    return Corrupt(
        "the checkpoint is corrupt",
        where=path,
        got=got,
        remedy=_OTHER,
    )
