"""A model in the server's memory: opened, and tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from howdah import storage
from howdah.errors import ModelError
from howdah.models.opened.opened import ServedModel, open_model
from howdah.models.opened.runtimes import ONNX, serving_framework
from howdah.models.version import Version
from howdah.serving.prediction.classify import outputs_of, usable
from howdah.serving.prediction.rows import Outputs, Row

_WARM = (
    Row("0", "The elephant carries a howdah."),
    Row("1", "a"),
    Row("2", "one text of more words than the others, so that a batch has padding " * 2),
)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One opened version."""

    version: Version
    model: ServedModel

    @cached_property
    def name(self) -> str:
        """Of the model, in answers and URLs: the published model's, else the run's, else the
        directory's."""
        if self.version.number is not None:
            return self.version.name
        return str(self.version.info.get("run_name") or storage.name(self.version.path))

    @cached_property
    def outputs(self) -> Outputs:
        """What its predictions have."""
        return outputs_of(self.model)

    @cached_property
    def identity(self) -> dict[str, object]:
        """{model, version, run_id} of each answer."""
        return {"model": self.name, "version": self.version.number, "run_id": self.model.run_id}


def workers_of(generation: Generation, threads: int) -> int:
    """How many threads compute with it at once.

    onnxruntime is given one thread for each computation, and several computations at once: a
    product of one sentence is too small to be divided. A framework divides its own.
    """
    return threads if generation.model.own_width else 1


def open_generation(version: Version, *, threads: int) -> Generation:
    """Open a model, which compares a published version with its hashes, and compute with it once.

    Args:
        threads: compute threads of the server.
    Raises:
        ModelError, StorageError: it is damaged, cannot be read, or does not give finite scores.
    """
    framework = serving_framework(version)
    each = 1 if framework == ONNX else threads
    model = open_model(version.path, framework=framework, threads=each)
    model.require("text", where="howdah serve", remedy="use `howdah predict` for images")
    generation = Generation(version=version, model=model)
    try_out(generation, _WARM)
    return generation


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
            where=generation.version.path,
            expected="finite scores",
            got=f"{int((~np.isfinite(scores_NC)).any(axis=1).sum())} of {len(texts)} texts without",
            remedy="roll back to another version",
        )
