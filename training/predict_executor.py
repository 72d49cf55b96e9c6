"""What Python workers of Spark do of a prediction: open the model once, classify batches of rows.

The model's files are not broadcast: a broadcast's bytes would stay in each worker beside the
weights that were decoded from them. They lie on the worker's disk instead: in the container's
directory, where YARN put them, or where Spark's `addFile` did.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from howdah.errors import ModelError
from howdah.spark.errors import crossing
from training.predict_io import Row
from training.serve import ServedModel, open_model

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ModelPlace", "Predictor", "Worker", "summed_up", "workers"]


@dataclass(frozen=True, kw_only=True)
class ModelPlace:
    """Where a worker finds the model's files."""

    key: str
    """Names the state of the files: another key is another model."""
    directory: str | None = None
    """A directory that workers see, on this machine; None: the files were shipped."""
    files: Mapping[str, str] | None = None
    """{file name: name under which it was shipped}."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """What a Python worker says of itself, by host and process id."""

    python: str
    """Its interpreter's environment (sys.prefix)."""
    peak_bytes: int
    """Most memory that it had resident."""
    opened: int
    """How often it opened a model."""


_opened: tuple[tuple[str, str], ServedModel] | None = None
_times_opened = 0


class Predictor:
    """mapInArrow's function: batches of (id, text) to batches of predictions.

    Args:
        place: of the model's files.
        framework: to run it with.
        seen: an accumulator of {host and process id: Worker}.
    """

    def __init__(self, place: ModelPlace, framework: str, seen: Any) -> None:
        self._place = place
        self._framework = framework
        self._seen = seen

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return crossing(self._classified)(batches)

    def _classified(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from training.predict import classify

        served = None
        for batch in batches:
            served = served or self._model()  # a part without rows opens none
            columns = batch.to_pydict()
            rows = [
                Row(row_id, text, None if text is not None else "the text is null")
                for row_id, text in zip(columns["id"], columns["text"], strict=True)
            ]
            predictions = classify(served, rows)
            yield pa.record_batch(
                {
                    "id": pa.array([p.id for p in predictions], pa.string()),
                    "label": pa.array([p.label for p in predictions], pa.string()),
                    "scores": pa.array([p.scores for p in predictions], pa.list_(pa.float32())),
                    "run_id": pa.array([served.run_id] * len(predictions), pa.string()),
                    "error": pa.array([p.error for p in predictions], pa.string()),
                }
            )
        if served is not None:
            name = f"{socket.gethostname()} {os.getpid()}"
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            worker = Worker(python=sys.prefix, peak_bytes=peak, opened=_times_opened)
            self._seen.add({name: worker})

    def _model(self) -> ServedModel:
        """The model, opened once a process; one of an earlier call is forgotten first."""
        global _opened, _times_opened
        key = (self._place.key, self._framework)
        if _opened is None or _opened[0] != key:
            _opened = None  # its memory is needed for the next one
            with tempfile.TemporaryDirectory(prefix="howdah-model-") as links:
                # Spark runs a worker a core: each takes one thread.
                served = open_model(self._directory(links), framework=self._framework, threads=1)
            _opened = (key, served)
            _times_opened += 1
        return _opened[1]

    def _directory(self, links: str) -> str:
        if self._place.directory is not None:
            return self._place.directory
        for name, shipped in (self._place.files or {}).items():
            os.symlink(_shipped(shipped), os.path.join(links, name))
        return links


def _shipped(name: str) -> str:
    """The path of a shipped file: in the container's directory, else among Spark's files."""
    from pyspark import SparkFiles

    for path in (os.path.abspath(name), SparkFiles.get(name)):
        if os.path.exists(path):
            return path
    raise ModelError(
        "a file of the model did not come to the executor",
        where=f"{socket.gethostname()}:{os.getcwd()}",
        expected=name,
        got="neither among the container's files nor among Spark's",
    )


# ------------------------------------------------------------------------------- in the driver
def workers() -> Any:
    """How Spark adds up what workers say: {host and process id: Worker}, the largest of each."""
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


def summed_up(seen: Mapping[str, Worker]) -> dict:
    """The summary of what they said: {count, peak_bytes, opened, python}."""
    return {
        "count": len(seen),
        "peak_bytes": max((worker.peak_bytes for worker in seen.values()), default=0),
        "opened": max((worker.opened for worker in seen.values()), default=0),
        "python": sorted({worker.python for worker in seen.values()}),
    }
