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
        """Name in answers and URLs: that of the published model, the run or the directory."""
        if self.version.number is not None:
            return self.version.name
        return str(self.version.info.get("run_name") or storage.name(self.version.path))

    @cached_property
    def outputs(self) -> Outputs:
        """Columns of the model's predictions."""
        return outputs_of(self.model)

    @cached_property
    def identity(self) -> dict[str, object]:
        """{model, version, run_id}, which each answer has."""
        return {"model": self.name, "version": self.version.number, "run_id": self.model.run_id}


def workers_of(generation: Generation, threads: int) -> int:
    """Return how many threads compute with a generation at once.

    onnxruntime gets one thread for each of several computations, since the matrix product of one
    sentence is too small to be divided. A framework divides its products itself.
    """
    return threads if generation.model.own_width else 1


def open_generation(version: Version, *, threads: int) -> Generation:
    """Open a model and compute with it once; a published version is compared with its hashes.

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
    """Classify some rows, so that a damaged model fails before it answers requests.

    Raises:
        ModelError: its scores are not finite, or their number is not that of its labels.
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
            "the model gives scores that are not finite",
            where=generation.version.path,
            remedy="roll back to another version",
        )
