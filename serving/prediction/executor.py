"""Predictions in Spark's Python workers: open the model once, classify batches of rows.

The model's files are not broadcast, since the bytes would stay in each worker's memory beside the
weights decoded from them. The worker reads them from disk: from the container's directory, where
YARN puts them, or from that of Spark's `addFile`.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from howdah.errors import ModelError
from howdah.models.integrity import ManifestFiles
from howdah.models.opened.opened import ServedModel, open_model
from howdah.serving.prediction.classify import classify, outputs_of
from howdah.serving.prediction.rows import EMPTY, Row
from howdah.spark.errors import crossing

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class ModelLocation:
    """The location of the model's files on a worker."""

    key: str
    """Identifies the files' state: another key is another model."""
    directory: str | None = None
    """Directory of this machine that workers see; None: the files were shipped."""
    files: Mapping[str, str] | None = None
    """{file name: name in the container}."""
    hashes: ManifestFiles | None = None
    """Hashes in the manifest of a published version; None: the model is not one."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A Python worker's report about itself."""

    python: str
    """Environment of its interpreter (sys.prefix)."""
    peak_bytes: int
    """Peak resident memory."""
    opened: int
    """Number of times that it has opened a model."""


Reader = Callable[[Iterable["pa.RecordBatch"]], Iterator[list[Row]]]
"""Turns batches into rows."""

_opened: tuple[tuple[str, str], ServedModel] | None = None
_times_opened = 0


class Predictor:
    """A function for mapInArrow: batches of (id, text) to batches of predictions.

    Args:
        location: location of the model's files.
        framework: framework to run the model with.
        seen: accumulator of {host and process id: Worker}.
        read: turns batches into rows if they are not (id, text).
    """

    def __init__(
        self, location: ModelLocation, framework: str, seen: Any, *, read: Reader | None = None
    ) -> None:
        self._location = location
        self._framework = framework
        self._seen = seen
        self._read = read or self._texts

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return crossing(self._classified)(batches)

    def _classified(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        served = None
        for rows in self._read(batches):
            served = served or self._model()  # not for a partition without rows
            yield self._answer(served, rows)
        if served is not None:
            name = f"{socket.gethostname()} {os.getpid()}"
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            worker = Worker(python=sys.prefix, peak_bytes=peak, opened=_times_opened)
            self._seen.add({name: worker})

    def _texts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Row]]:
        """Yield the rows of batches of (id, text)."""
        for batch in batches:
            pairs = self._model().pairs
            columns = batch.to_pydict()
            yield [
                Row(row_id, text, None if text is not None else EMPTY, pairs)
                for row_id, text in zip(columns["id"], columns["text"], strict=True)
            ]

    def _answer(self, served: ServedModel, rows: list[Row]) -> pa.RecordBatch:
        """Return the predictions of a batch's rows, as a batch."""
        return outputs_of(served).columns(classify(served, rows), served.run_id)

    def _model(self) -> ServedModel:
        """Return the model, opened once per process; another one is released first."""
        global _opened, _times_opened
        key = (self._location.key, self._framework)
        if _opened is None or _opened[0] != key:
            _opened = None  # the next one needs its memory
            with tempfile.TemporaryDirectory(prefix="howdah-model-") as links:
                # Spark runs a worker per core: each uses one thread.
                served = open_model(
                    self._directory(links), framework=self._framework, threads=1,
                    files=self._location.hashes,
                )  # fmt: skip
            _opened = (key, served)
            _times_opened += 1
        return _opened[1]

    def _directory(self, links: str) -> str:
        if self._location.directory is not None:
            return self._location.directory
        for name, shipped in (self._location.files or {}).items():
            _link(_shipped(shipped), os.path.join(links, name))
        return links


def _link(source: str, target: str) -> None:
    """Hard-link a file if the system allows it, else make a symbolic link.

    onnxruntime does not map a file behind a symbolic link, but copies its weights.
    """
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # on another disk, or another user's file
        os.symlink(source, target)


def _shipped(name: str) -> str:
    """Return the path of a shipped file: in the container's directory, else among Spark's files."""
    from pyspark import SparkFiles

    for path in (os.path.abspath(name), SparkFiles.get(name)):
        if os.path.exists(path):
            return path
    raise ModelError(
        "a file of the model is missing on the executor",
        where=f"{socket.gethostname()}:{os.getcwd()}",
        expected=name,
    )


# ------------------------------------------------------------------------------- in the driver
def workers() -> Any:
    """Make Spark's accumulator of {host and process id: Worker}, which keeps the largest peaks."""
    from pyspark.accumulators import AccumulatorParam

    class Largest(AccumulatorParam):
        def zero(self, value: dict) -> dict:
            return {}

        def addInPlace(self, one: dict, other: dict) -> dict:
            for name, worker in other.items():
                if name not in one or one[name].peak_bytes <= worker.peak_bytes:
                    one[name] = worker
            return one

    return Largest()


def summarize(seen: Mapping[str, Worker]) -> dict:
    """Return {count, peak_bytes, opened, python} over all workers."""
    return {
        "count": len(seen),
        "peak_bytes": max((worker.peak_bytes for worker in seen.values()), default=0),
        "opened": max((worker.opened for worker in seen.values()), default=0),
        "python": sorted({worker.python for worker in seen.values()}),
    }
