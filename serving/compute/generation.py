"""A model that a server answers with: opened in this process and tried, or by another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from howdah import storage
from howdah.config.tasks import Task
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
class RemoteModel:
    """A model that another process has opened: what answers and metadata say of it.

    Its fields have the names and meanings of ServedModel's.
    """

    framework: str
    labels: list[str]
    run_id: str
    max_length: int
    task: Task
    pairs: bool


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One opened version."""

    version: Version
    model: ServedModel | RemoteModel

    @cached_property
    def name(self) -> str:
        """Name in answers and URLs: that of the published model, the run or the directory."""
        if self.version.number is not None:
            return self.version.name
        return str(self.version.info.get("run_name") or storage.name(self.version.path))

    @cached_property
    def outputs(self) -> Outputs:
        """Columns of the model's predictions."""
        if isinstance(self.model, RemoteModel):  # it writes no file that names its decision
            return Outputs(task=self.model.task, labels=self.model.labels)
        return outputs_of(self.model)

    @cached_property
    def identity(self) -> dict[str, object]:
        """{model, version, run_id}, which each answer has."""
        return {"model": self.name, "version": self.version.number, "run_id": self.model.run_id}

    def described(self) -> dict[str, Any]:
        """The fields of RemoteModel, as plain values."""
        return {one.name: getattr(self.model, one.name) for one in fields(RemoteModel)}


def workers_of(generation: Generation, threads: int) -> int:
    """Return how many threads compute with a generation at once.

    onnxruntime gets one thread for each of several computations, since the matrix product of one
    sentence is too small to be divided. A framework divides its products itself.
    """
    return threads if generation.model.own_width else 1


def open_generation(version: Version, *, threads: int, one_at_a_time: bool = False) -> Generation:
    """Open a model and compute with it once; a published version is compared with its hashes.

    Args:
        threads: compute threads of the server.
        one_at_a_time: no two computations run at once, so that each has all threads
            (see workers_of).
    Raises:
        ModelError, StorageError: it is damaged, cannot be read, or does not give finite scores.
    """
    framework = serving_framework(version)
    each = 1 if framework == ONNX and not one_at_a_time else threads
    model = open_model(version.path, framework=framework, threads=each)
    model.require("text", where="howdah serve", remedy="use `howdah predict` for images")
    generation = Generation(version=version, model=model)
    try_out(generation, _WARM)
    return generation


def try_out(generation: Generation, rows: Sequence[Row]) -> None:
    """Classify some rows, so that a damaged model fails before it answers requests.

    Raises:
        ModelError: its scores are not finite.
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
