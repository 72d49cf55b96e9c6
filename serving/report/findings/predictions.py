"""Reads the predictions that a run wrote (predictions/<split>/part-*.parquet), batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from howdah import storage
from howdah.config.tasks import Task
from howdah.errors import DataError, NotFound

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_VALUES = 2**20
"""Largest number of scores in memory at a time."""
_BATCH_ROWS = 16_384
_PLACE = ("shard", "row", "tokens")


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some rows: N rows, C labels."""

    ids: pa.Array
    labels: np.ndarray
    """int[N]; bool [N, C] of a multi-label task; float64[N] of a regression."""
    predicted: np.ndarray
    """Predictions, in the form of `labels`."""
    scores: np.ndarray
    """float32 [N, C]; of a regression [N, 1], the predicted number."""
    places: np.ndarray
    """int64 [N, 3]: shard (in the manifest's order), row in it, tokens."""

    def __len__(self) -> int:
        return len(self.labels)


class Predictions:
    """A split's predictions.

    Args:
        directory: directory of the parts.
        labels: names in the order of the scores.
    Raises:
        NotFound: there are no predictions.
        DataError: a part is not a file of predictions of these labels, or there are no labels.
    """

    def __init__(self, directory: str, labels: Sequence[str], task: Task) -> None:
        self.directory, self.labels, self.task = directory, list(labels), task
        if not labels:
            raise DataError("the run's metrics name no labels", where=directory)
        self._numbers = {name: number for number, name in enumerate(labels)}
        entries = storage.list_dir(directory)
        self._parts = sorted(
            e.path for e in entries if e.name.startswith("part-") and e.name.endswith(".parquet")
        )
        if not self._parts:
            raise NotFound("there are no predictions", where=directory)

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows, in the order of the files."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = ["id", "label", "predicted", *_PLACE]
        columns += [] if self.task == "regression" else ["scores"]
        rows = max(256, min(_BATCH_ROWS, _BATCH_VALUES // len(self.labels)))
        for path in self._parts:
            with storage.open_read(path) as file:
                try:
                    for batch in pq.ParquetFile(file).iter_batches(rows, columns=columns):
                        if batch.num_rows:
                            yield self._chunk(batch)
                except (pa.ArrowException, KeyError, ValueError) as error:
                    raise DataError(
                        "the predictions cannot be read",
                        where=path,
                        got=f"{type(error).__name__}: {error}",
                    ) from None

    def _chunk(self, batch: pa.RecordBatch) -> Chunk:
        places = [batch.column(name).to_numpy(zero_copy_only=False) for name in _PLACE]
        predicted = self._named(batch.column("predicted"))
        if self.task == "regression":
            scores = predicted[:, None].astype(np.float32)
        else:
            flat = batch.column("scores").flatten().to_numpy(zero_copy_only=False)
            scores = flat.astype(np.float32, copy=False).reshape(len(batch), len(self.labels))
        return Chunk(
            ids=batch.column("id"),
            labels=self._named(batch.column("label")),
            predicted=predicted,
            scores=scores,
            places=np.stack(places, axis=1).astype(np.int64),
        )

    def _named(self, column: pa.Array) -> np.ndarray:
        import pyarrow as pa

        if self.task == "regression":
            return column.to_numpy(zero_copy_only=False).astype(np.float64)
        if self.task == "multi_label":
            out = np.zeros((len(column), len(self.labels)), bool)
            owners = np.repeat(
                np.arange(len(column)), np.diff(column.offsets.to_numpy(zero_copy_only=False))
            )
            numbers = [self._numbers[name] for name in column.flatten().to_pylist()]
            out[owners, np.array(numbers, np.int64)] = True
            return out
        if not isinstance(column, pa.DictionaryArray):
            column = column.dictionary_encode()
        names = column.dictionary.to_pylist()
        return np.array([self._numbers[name] for name in names], np.int64)[
            column.indices.to_numpy(zero_copy_only=False)
        ]
