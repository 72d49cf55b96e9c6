"""A model in the server's memory: opened, its files compared with their hashes, and tried."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from howdah import storage
from howdah.data import modelfiles
from howdah.errors import ModelError
from howdah.models.registry import Published
from training.prediction.classify import outputs_of, usable
from training.prediction.rows import Outputs, Row
from training.serving.runtimes import ONNX, serving_framework
from training.serving.serve import EXPORT_PATTERNS, ServedModel, open_model
from training.serving.variants import Variant

__all__ = ["Generation", "open_generation", "served_name", "try_out", "workers_of"]

_WARM = (
    Row("0", "The elephant carries a howdah."),
    Row("1", "a"),
    Row("2", "one text of more words than the others, so that a batch has padding " * 2),
)
_CHUNK = 4 * 2**20


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One opened version."""

    variant: Variant
    model: ServedModel

    @cached_property
    def name(self) -> str:
        """Of the model, for answers and URLs."""
        return served_name(self.variant)

    @property
    def version(self) -> int | None:
        """Of the published model; None: an export."""
        return self.variant.version

    @cached_property
    def outputs(self) -> Outputs:
        """What its predictions have."""
        return outputs_of(self.model)

    @cached_property
    def identity(self) -> dict[str, object]:
        """{model, version, run_id} of each answer."""
        return {"model": self.name, "version": self.version, "run_id": self.model.run_id}


def served_name(variant: Variant) -> str:
    """The name in answers and URLs: the published model's, else the run's, else the directory's."""
    if variant.version is not None:
        return variant.name
    return str(variant.info.get("run_name") or storage.name(variant.path.rstrip("/")))


def workers_of(generation: Generation, threads: int) -> int:
    """How many threads compute with it at once.

    onnxruntime is given one thread for each computation, and several computations at once: a
    product of one sentence is too small to be divided. A framework divides its own.
    """
    return threads if generation.model.own_width else 1


def open_generation(variant: Variant, *, threads: int) -> Generation:
    """Open a model, compute with it once, and make sure that its files are those published.

    Args:
        threads: compute threads of the server.
    Raises:
        ModelError, StorageError: it is damaged, cannot be read, or does not give finite scores.
    """
    if variant.version is not None:
        _verify(variant)
    framework = serving_framework(variant.path)
    each = 1 if framework == ONNX else threads
    model = open_model(variant.path, framework=framework, threads=each)
    model.require("text", where="howdah serve", remedy="use `howdah predict` for images")
    generation = Generation(variant=variant, model=model)
    try_out(generation, _WARM)
    return generation


def _verify(variant: Variant) -> None:
    """Compare a version's files with its manifest, as they are on this machine.

    Raises:
        ModelError: a file is missing or is another one.
    """
    root, number = storage.parent(variant.path), variant.version
    files = Published(root).version(number or 0).get("files") or {}
    local = modelfiles.fetch(variant.path, patterns=EXPORT_PATTERNS)
    needed = [name for name in sorted(files) if _is_needed(name)]
    for name in needed:
        got = _digest(os.path.join(local, name))
        if got != files[name]:
            raise ModelError(
                "a published file is damaged",
                where=storage.join(variant.path, name),
                expected=f"{files[name]['bytes']:,} bytes, sha256 {files[name]['sha256']}",
                got=f"{got['bytes']:,} bytes, sha256 {got['sha256']}" if got else "nothing",
                remedy="publish the run again, or roll back to another version",
            )


def _is_needed(name: str) -> bool:
    import fnmatch

    return any(fnmatch.fnmatchcase(name, pattern) for pattern in EXPORT_PATTERNS)


def _digest(path: str) -> dict[str, object] | None:
    digest, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
    except FileNotFoundError:
        return None
    return {"bytes": size, "sha256": digest.hexdigest()}


def try_out(generation: Generation, rows: Sequence[Row]) -> None:
    """Classify some rows, for the error that a model raises that is not whole.

    Raises:
        ModelError: its scores are not finite, or of another number than its labels.
    """
    model = generation.model
    if model.pairs:
        from howdah.data.clean import joined

        rows = [
            row if row.pair or row.text is None
            else Row(row.id, joined(row.text, row.text), pair=True)
            for row in rows
        ]  # fmt: skip
    texts = [text for row in rows if isinstance(text := usable(model, row), str)]
    if not texts:
        return
    scores_NC = model.scores(texts)
    if not np.isfinite(scores_NC).all():
        raise ModelError(
            "the model gives scores that are no numbers",
            where=generation.variant.path,
            expected="finite scores",
            got=f"{int((~np.isfinite(scores_NC)).any(axis=1).sum())} of {len(texts)} texts without",
            remedy="roll back to another version",
        )
