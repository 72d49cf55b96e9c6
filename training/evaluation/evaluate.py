"""Distributed evaluation: each row counts once, metrics are equal on all ranks."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, assert_never

import numpy as np

from howdah import storage
from howdah.config.model import Config
from howdah.config.splits import SPLITS, TEST
from howdah.config.tasks import Task
from howdah.core import activity
from howdah.core.terminal import shown
from howdah.data.manifest import Dataset, load_dataset
from howdah.data.splits.planner import Planner, PlanSpec, Rows, pad_multiple
from howdah.data.splits.shards import ShardSet, first_rows, node_cache
from howdah.errors import DataError, HowdahError, ModelError, NotFound, StorageFull, UsageError
from howdah.models.decision import scores_of
from howdah.models.metrics.tally import Tally
from howdah.training.comm.base import Comm, SoloComm
from howdah.training.comm.in_step import InStep
from howdah.training.data.readers import Batch, BatchSource

if TYPE_CHECKING:
    from howdah.models.opened.opened import ServedModel
    from howdah.models.opened.runtimes import Forward
    from howdah.training.evaluation.profile_writer import RowSample

_GROUP_ROWS = 20_000
_GROUP_BYTES = 16 * 2**20
"""Predictions are written in groups of this number of rows, or of this size: a row of 10,000
classes has 40 kB."""
_IN_MEMORY = 64 * 2**20


def evaluate(
    forward: Forward,
    source: Iterable[Batch],
    comm: Comm,
    label_names: Sequence[str],
    predictions_dir: str | None = None,
    run_id: str = "",
    *,
    what: str = "evaluating",
    rows: int | None = None,
    stop: Callable[[], bool] | None = None,
    check: Callable[[], None] = lambda: None,
    together: Comm | None = None,
    task: Task = "single_label",
    unwritten: Callable[[str], None] | None = None,
    sample: RowSample | None = None,
) -> dict | None:
    """Metrics of a model over all rows of all ranks' sources. Every rank enters.

    Args:
        forward: (ids_BT, mask_BT) -> logits_BC float32.
        source: this rank's batches; filler rows (weight 0) are ignored.
        predictions_dir: directory in which each rank writes `part-<rank>.parquet`; None: no
            predictions.
        run_id: value of the column run_id in the predictions.
        what, rows: text and number of rows over all ranks, for the progress shown to users.
        stop: called after each batch; returns True if this rank was requested to stop. None: never.
        check: called before predictions are written; raises if this process must not write.
        together: the ranks that enter each call of `forward` together; None: each rank calls it
            separately.
        unwritten: called with a line if a disk has no space for the predictions; then no rank
            writes them. None: it is an error.
        sample: gets some of this rank's rows; None: none.
    Returns:
        The task's metrics (models/metrics/), equal on all ranks; None if a rank was requested to
        stop before the end.
    Raises:
        DataError, ModelError: there are no rows, or logits have NaN or infinity; on all ranks
            alike.
    """
    tally = Tally(label_names, task)
    stop_requested = stop or (lambda: False)
    in_step = None if together is None else InStep(source, together, stop_requested)
    with contextlib.ExitStack() as stack:
        part = None
        if predictions_dir is not None:
            part = PredictionPart(label_names, run_id, task, keep_going=unwritten is not None)
            stack.enter_context(part)
        with activity.current().doing("evaluate", what, total=rows, unit="rows"):
            if in_step is None:
                stopped = _forward_all(forward, source, tally, part, stop_requested, sample)
            else:

                def within_limit(ids_BT: np.ndarray, mask_BT: np.ndarray) -> np.ndarray:
                    with together.limited():
                        return np.asarray(forward(ids_BT, mask_BT), np.float32)

                with together.guarded():
                    _forward_all(within_limit, in_step, tally, part, None, sample)
                stopped = in_step.stopped
        # Every rank enters, even one that was not requested to stop, so that no rank enters the
        # sums while others have stopped.
        if stop is not None and comm.agree(stopped):
            return None
        if part is not None:
            check()
            part.publish(storage.join(predictions_dir, _part_name(comm.rank)))
            # Every rank enters: either all ranks' parts are kept, or none.
            lost = [why for why in comm.gather_json(part.failed) if why is not None]
            if lost and unwritten is not None:
                unwritten(f"no disk space for the predictions, so none are written: {lost[0]}")
            if comm.rank == 0:
                _remove_parts_beyond(predictions_dir, 0 if lost else comm.size)
    outcome: object = None
    try:
        # Every rank enters, even one that had only filler rows.
        outcome = {"metrics": tally.metrics(comm)}
    except (DataError, ModelError) as error:
        # Not raised here, since the other ranks wait in the broadcast: all ranks raise it there.
        outcome = {"error": error.as_dict()}
    result = comm.broadcast_json(outcome)
    if "error" in result:
        raise HowdahError.from_dict(result["error"])
    return result["metrics"]


def _forward_all(
    forward: Forward,
    source: Iterable[Batch],
    tally: Tally,
    part: PredictionPart | None,
    stop: Callable[[], bool] | None,
    sample: RowSample | None = None,
) -> bool:
    """Add all rows to the tally and the predictions. Returns True if it was stopped before the end.

    Args:
        stop: see `evaluate`; None: `source` ends on all ranks together, and every rank computes all
            batches.
    """
    for batch in source:
        # An evaluation has no class weights, so this is the number of rows over all ranks.
        done = int(batch.global_weight) if batch.last_of_step else 0
        real_B = batch.weights_B > 0
        if stop is not None and not real_B.any():
            activity.current().advanced(done)
            continue
        logits_BC = np.asarray(forward(batch.ids_BT, batch.mask_BT), np.float32)
        labels_B = np.asarray(batch.labels_B)
        tally.add(labels_B[real_B], logits_BC[real_B])
        if sample is not None:
            sample.add(labels_B[real_B], logits_BC[real_B])
        activity.current().advanced(done)
        if part is not None and real_B.any():  # row_ids parses every record
            ids = [row_id for row_id, real in zip(batch.row_ids, real_B, strict=True) if real]
            part.add(ids, labels_B[real_B], logits_BC[real_B], batch.rows.take(real_B))
        if stop is not None and stop():
            return True
    return False


# -------------------------------------------------------------------------------- predictions
def _part_name(rank: int) -> str:
    return f"part-{rank:05d}.parquet"


class PredictionPart:
    """A Parquet file of one rank's predictions, written as rows arrive; a context manager.

    Columns: id, label, predicted (names), scores (probabilities in the order of the labels, which
    the file's metadata `labels` lists), run_id, and the row's position: shard (its number in the
    manifest's list of the split), row (in the shard), tokens. For task multi_label, label and
    predicted are lists of names; for regression they are numbers, and there are no scores. The file
    is in memory up to 64 MiB, then in a temporary file, until it is published.

    Args:
        keep_going: if storage or the disk of temporary files is full, set `failed` and write
            nothing. Otherwise it is an error.
    """

    def __init__(
        self,
        label_names: Sequence[str],
        run_id: str,
        task: Task = "single_label",
        *,
        keep_going: bool = False,
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.names = pa.array(list(label_names), pa.string())
        self.run_id, self.task = run_id, task
        self.keep_going = keep_going
        self.failed: str | None = None
        """Reason why no file will be written; None if it will be."""
        named = {
            "single_label": pa.dictionary(pa.int32(), pa.string()),
            "multi_label": pa.list_(pa.string()),
            "regression": pa.float32(),
        }[task]
        scores = [] if task == "regression" else [("scores", pa.list_(pa.float32()))]
        self.schema = pa.schema(
            [
                ("id", pa.string()),
                ("label", named),
                ("predicted", named),
                *scores,
                ("run_id", pa.string()),
                ("shard", pa.int32()),
                ("row", pa.int64()),
                ("tokens", pa.int32()),
            ],
            metadata={"labels": "\n".join(label_names), "run_id": run_id},
        )
        self.file = tempfile.SpooledTemporaryFile(_IN_MEMORY, prefix="howdah-predictions-")  # noqa: SIM115
        self.writer = pq.ParquetWriter(self.file, self.schema, compression="zstd")
        self.waiting: list[pa.RecordBatch] = []

    def __enter__(self) -> PredictionPart:
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer.is_open:  # otherwise it would write its footer when it is collected
            with contextlib.suppress(OSError):
                self.writer.close()
        with contextlib.suppress(OSError):  # closing writes the buffer
            self.file.close()

    @contextlib.contextmanager
    def _with_room(self) -> Iterator[None]:
        try:
            yield
        except StorageFull as error:
            if not self.keep_going:
                raise
            self.failed = f"{error.what} ({error.where})"
        except OSError as error:  # the temporary file's
            if not self.keep_going:
                raise
            self.failed = f"{error.strerror or error} ({tempfile.gettempdir()})"
        if self.failed is not None:
            self.waiting = []

    def add(
        self, ids_B: Sequence[bytes], labels_B: np.ndarray, logits_BC: np.ndarray, places: Rows
    ) -> None:
        """Add a batch's rows, without fillers."""
        import pyarrow as pa

        if self.failed is not None:
            return

        def named(values: np.ndarray) -> pa.Array:
            if self.task == "regression":
                return pa.array(values, pa.float32())
            if self.task == "single_label":
                numbers = pa.array(values, pa.int32())
                return pa.DictionaryArray.from_arrays(numbers, self.names)
            if self.task != "multi_label":
                assert_never(self.task)
            row, number = np.nonzero(values)
            ends = np.searchsorted(row, np.arange(len(values) + 1))
            return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), self.names.take(number))

        predicted = {
            "single_label": lambda: logits_BC.argmax(axis=1),
            "multi_label": lambda: logits_BC > 0,
            "regression": lambda: logits_BC[:, 0],
        }[self.task]()
        scores = []
        if self.task != "regression":
            flat = scores_of(self.task, logits_BC).astype(np.float32).reshape(-1)
            listed = pa.FixedSizeListArray.from_arrays(pa.array(flat), len(self.names))
            scores = [listed.cast(pa.list_(pa.float32()))]
        columns = [
            pa.array([row_id.decode("utf-8", "backslashreplace") for row_id in ids_B], pa.string()),
            named(labels_B),
            named(predicted),
            *scores,
            pa.array([self.run_id] * len(ids_B), pa.string()),
            pa.array(places.shard, pa.int32()),
            pa.array(places.row, pa.int64()),
            pa.array(places.length, pa.int32()),
        ]
        self.waiting.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        rows = sum(batch.num_rows for batch in self.waiting)
        if rows >= _GROUP_ROWS or sum(batch.nbytes for batch in self.waiting) >= _GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa

        with self._with_room():
            self.writer.write_table(pa.Table.from_batches(self.waiting, self.schema))
        self.waiting = []

    def publish(self, path: str) -> None:
        """Write or replace the file at `path`, whole or not at all."""
        if self.failed is None:
            self._write()
        if self.failed is not None:
            return

        def copy(target: BinaryIO) -> None:
            self.file.seek(0)
            shutil.copyfileobj(self.file, target, 2**20)

        with self._with_room():
            self.writer.close()
            storage.write_stream(path, copy, size=self.file.tell())


def _remove_parts_beyond(directory: str, world: int) -> None:
    """Remove parts of an earlier evaluation on more ranks: their rows would count twice."""
    valid = {_part_name(rank) for rank in range(world)}
    with contextlib.suppress(NotFound):  # no rank had space for its part
        for entry in storage.list_dir(directory):
            if entry.name.startswith("part-") and entry.name not in valid:
                storage.remove(entry.path)


# ----------------------------------------------------------------------------- howdah evaluate
def evaluate_run(
    config: Config,
    *,
    model: str | None = None,
    split: str = TEST,
    predictions_dir: str | None = None,
    framework: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict:
    """Evaluate an export on a split of the configuration's dataset, in this process.

    Args:
        model: the model's address (models/version.py); None: the configuration's run.
        split: train, validation or test.
        predictions_dir: directory for predictions; None: do not write them.
        framework: the framework to run it with; None: the one that it was trained with.
    Raises:
        ModelError: there is no model, or its labels or tokenizer differ from the dataset's.
        DataError: there is no dataset, or the split has no rows.
    """
    from howdah.models.opened.opened import open_model
    from howdah.models.opened.runtimes import training_framework
    from howdah.models.version import open_version

    version = open_version(model or config.run.directory, config.publish.directory)
    path, framework = version.path, framework or training_framework(version)
    dataset = load_dataset(config.data.dataset)
    _check_split(dataset, split)
    served = open_model(path, framework=framework, threads=config.training.threads_per_rank)
    check_fit(served, dataset)
    progress(f"evaluating {path} on {split}: {dataset.manifest.rows(split):,} rows")
    trained = version.info.get("dataset") or {}
    if trained.get("hash") not in (None, dataset.manifest.dataset_hash):
        progress(
            f"this is {dataset.path}; the model was trained on {trained.get('path')}, whose"
            f" {split} rows may differ"
        )
    return evaluate(
        served.forward,
        split_source(config, dataset, split, gpu=served.gpu, row_ids=predictions_dir is not None),
        SoloComm(),
        served.labels,
        predictions_dir,
        served.run_id,
        task=served.task,
    )


def split_source(
    config: Config,
    dataset: Dataset,
    split: str,
    *,
    gpu: bool,
    row_ids: bool,
    max_rows: int | None = None,
) -> Iterable[Batch]:
    """Batches of a split for one process, each row once.

    Args:
        max_rows: number of rows to sample (data/splits/shards.py `first_rows`); None: all.
    """
    shards = ShardSet(dataset, split, cache=node_cache(config.training))
    spec = PlanSpec(
        dataset_hash=dataset.manifest_hash,
        split=split,
        seed=0,
        global_batch_size=config.training.global_batch_size,
        shuffle=False,
    )
    planner = Planner(first_rows(shards.lengths, max_rows), spec)
    shards.check_room(planner)
    if shards.cached_bytes + shards.files.index_bytes <= config.training.shard_cache_bytes:
        shards.verify()  # otherwise each shard is checked when it is fetched
    return BatchSource(
        shards,
        planner,
        rank=0,
        world=1,
        max_tokens=config.training.max_tokens(),
        pad_multiple=pad_multiple(gpu),
        widest=dataset.manifest.max_length,  # a model that fits the dataset has these positions
        pad_id=dataset.manifest.tokenizer.pad_id,
        row_ids=row_ids,
    )


def _check_split(dataset: Dataset, split: str) -> None:
    if split not in SPLITS:
        raise UsageError(
            "unknown split", where="--split", expected=", ".join(SPLITS), got=shown(split)
        )
    if not dataset.manifest.rows(split):
        have = [name for name in dataset.manifest.splits if dataset.manifest.rows(name)]
        raise DataError(
            f"the dataset has no rows in {split}",
            where=dataset.path,
            remedy=f"evaluate {' or '.join(have)}, or give {split} a share in data.split",
        )


def check_fit(served: ServedModel, dataset: Dataset) -> None:
    """Refuse a model with another task, other labels or another tokenizer than the dataset's.

    Raises:
        ModelError: they differ.
    """
    manifest = dataset.manifest
    if (served.task, served.pairs) != (manifest.task, manifest.pairs):
        of = {True: "pairs of texts", False: "single rows"}
        raise ModelError(
            "model and dataset have different tasks",
            where=served.path,
            expected=f"{manifest.task} of {of[manifest.pairs]} ({dataset.path})",
            got=f"{served.task} of {of[served.pairs]}",
        )
    if served.labels != manifest.labels:
        raise ModelError(
            "model and dataset have different labels",
            where=served.path,
            expected=", ".join(manifest.labels) + f" ({dataset.path})",
            got=", ".join(served.labels),
        )
    if served.encoder.hash != manifest.tokenizer.hash:
        raise ModelError(
            "the model's tokenizer is not the dataset's: the same ids mean different words"
            if served.kind == "text"
            else "the model expects images to be prepared differently from the dataset's",
            where=served.path,
            expected=f"{manifest.tokenizer.hash} ({manifest.tokenizer.source})",
            got=served.encoder.hash,
            remedy="run `howdah etl` with the model's base as model.base",
        )
