"""Distributed evaluation: each row counts once, metrics are equal on all ranks."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from howdah import storage
from howdah.config.loader import Config
from howdah.config.splits import TEST
from howdah.core import activity
from howdah.data.manifest import Dataset, load_dataset
from howdah.errors import DataError, HowdahError, ModelError
from training.comm.base import Comm, SoloComm
from training.data.planner import Planner, PlanSpec, pad_multiple
from training.data.readers import Batch, BatchSource
from training.data.shards import ShardSet, node_cache
from training.evaluation.metrics import classification_metrics, softmax

if TYPE_CHECKING:
    from training.serving.serve import Forward, ServedModel

__all__ = ["evaluate", "evaluate_run", "prediction_part"]


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
) -> dict | None:
    """Metrics of a model over all rows of all ranks' sources. Every rank enters.

    Args:
        forward: (ids_BT, mask_BT) -> logits_BC float32.
        source: this rank's batches; filler rows (weight 0) are ignored.
        comm: the world, or SoloComm.
        predictions_dir: where each rank writes `part-<rank>.parquet`; None: nowhere.
        run_id: in every row of the predictions.
        what, rows: for the progress shown to users: the split, and its rows over all ranks.
        stop: called after each batch; True: this rank was asked to stop. None: it never is.
        check: called before predictions are written; raises where this process must not write.
    Returns:
        The result of `classification_metrics`, equal on all ranks; None where a rank was asked to
        stop before the end.
    Raises:
        DataError, ModelError: no rows, or logits with NaN or infinity; on all ranks alike.
    """
    keep_ids = predictions_dir is not None
    with activity.doing("evaluate", what, total=rows, unit="rows"):
        stopped, (labels_N, logits_NC, ids_N) = _forward_all(
            forward, source, len(label_names), keep_ids, stop or (lambda: False)
        )
    # Every rank enters, also one that was not asked to stop: it must not enter the gathers alone.
    if stop is not None and comm.agree(stopped):
        return None
    if predictions_dir is not None:
        part = prediction_part(ids_N, labels_N, logits_NC, label_names, run_id)
        check()
        storage.write_whole(storage.join(predictions_dir, _part_name(comm.rank)), part)
        if comm.rank == 0:
            _remove_parts_beyond(predictions_dir, comm.size)
    # Every rank enters both gathers, also one that had only filler rows: it adds no rows.
    all_labels = comm.gather(labels_N)
    all_logits = comm.gather(logits_NC)
    outcome: object = None
    if comm.rank == 0:
        try:
            outcome = {"metrics": classification_metrics(all_labels, all_logits, label_names)}
        except HowdahError as error:
            # Broadcast rather than raised here alone: the other ranks wait in the broadcast.
            outcome = {"error": error.as_dict()}
    result = comm.broadcast_json(outcome)
    if "error" in result:
        raise HowdahError.from_dict(result["error"])
    return result["metrics"]


def _forward_all(
    forward: Forward,
    source: Iterable[Batch],
    classes: int,
    keep_ids: bool,
    stop: Callable[[], bool],
) -> tuple[bool, tuple[np.ndarray, np.ndarray, list[bytes]]]:
    """Whether it was stopped, and (labels_N, logits_NC, ids_N) of the rows so far."""
    stopped = False
    labels, logits, ids = [np.zeros(0, np.int64)], [np.zeros((0, classes), np.float32)], []
    for batch in source:
        # Rows of all ranks: an evaluation has no class weights.
        done = int(batch.global_weight) if batch.last_of_step else 0
        real_B = batch.weights_B > 0
        if not real_B.any():
            activity.advanced(done)
            continue
        logits_BC = np.asarray(forward(batch.ids_BT, batch.mask_BT), np.float32)
        labels.append(np.asarray(batch.labels_B, np.int64)[real_B])
        logits.append(logits_BC[real_B])
        activity.advanced(done)
        if keep_ids:  # row_ids parses every record
            ids += [row_id for row_id, real in zip(batch.row_ids, real_B, strict=True) if real]
        if stopped := stop():
            break
    return stopped, (np.concatenate(labels), np.concatenate(logits), ids)


# -------------------------------------------------------------------------------- predictions
def _part_name(rank: int) -> str:
    return f"part-{rank:05d}.parquet"


def prediction_part(
    ids_N: Sequence[bytes],
    labels_N: np.ndarray,
    logits_NC: np.ndarray,
    label_names: Sequence[str],
    run_id: str,
) -> bytes:
    """A Parquet file of one rank's predictions.

    Columns: id, label, predicted (names), scores (probabilities in the order of the labels, which
    the file's metadata `labels` lists), run_id.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = pa.array(list(label_names), pa.string())
    scores_NC = softmax(logits_NC).astype(np.float32) if len(ids_N) else logits_NC

    def named(numbers: np.ndarray) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), names)

    predicted_N = logits_NC.argmax(axis=1) if len(ids_N) else np.zeros(0, np.int64)
    scores = pa.FixedSizeListArray.from_arrays(
        pa.array(scores_NC.reshape(-1), pa.float32()), len(label_names)
    )
    table = pa.table(
        {
            "id": pa.array([row_id.decode("utf-8", "backslashreplace") for row_id in ids_N]),
            "label": named(labels_N),
            "predicted": named(predicted_N),
            "scores": scores.cast(pa.list_(pa.float32())),
            "run_id": pa.array([run_id] * len(ids_N), pa.string()),
        }
    )
    labels = "\n".join(label_names)
    table = table.replace_schema_metadata({"labels": labels, "run_id": run_id})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _remove_parts_beyond(directory: str, world: int) -> None:
    """Remove parts of an earlier evaluation on more ranks: their rows would count twice."""
    valid = {_part_name(rank) for rank in range(world)}
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
        model: an export or a run directory; None: the configuration's run.
        split: train, validation or test.
        predictions_dir: where to write predictions; None: nowhere.
        framework: to run it with; None: the one that it was trained with.
        progress: called with a line.
    Raises:
        ModelError: no model, or its labels or tokenizer differ from the dataset's.
        DataError: no dataset, or no rows in the split.
    """
    from training.serving.serve import open_model

    dataset = load_dataset(config.data.dataset)
    _check_split(dataset, split)
    path = model or config.run.directory
    served = open_model(path, framework=framework, threads=config.training.threads_per_rank)
    _check_fit(served, dataset)
    progress(f"evaluating {path} on {split}: {dataset.manifest.rows(split):,} rows")
    return evaluate(
        served.forward,
        _split_source(config, dataset, split, gpu=served.gpu, row_ids=predictions_dir is not None),
        SoloComm(),
        served.labels,
        predictions_dir,
        served.run_id,
    )


def _split_source(
    config: Config, dataset: Dataset, split: str, *, gpu: bool, row_ids: bool
) -> Iterable[Batch]:
    shards = ShardSet(dataset, split, cache=node_cache(config.training))
    spec = PlanSpec(
        dataset_hash=dataset.manifest_hash,
        split=split,
        seed=0,
        global_batch_size=config.training.global_batch_size,
        shuffle=False,
    )
    planner = Planner(shards.lengths, spec)
    shards.check_room(planner)
    if shards.cached_bytes + shards.files.index_bytes <= config.training.shard_cache_bytes:
        shards.verify()  # otherwise each shard is checked when it is fetched
    return BatchSource(
        shards,
        planner,
        rank=0,
        world=1,
        max_tokens=config.training.per_device_max_tokens,
        pad_multiple=pad_multiple(gpu),
        widest=dataset.manifest.max_length,  # a model that fits the dataset has the positions
        pad_id=dataset.manifest.tokenizer.pad_id,
        row_ids=row_ids,
    )


def _check_split(dataset: Dataset, split: str) -> None:
    if not dataset.manifest.rows(split):
        have = [name for name in dataset.manifest.splits if dataset.manifest.rows(name)]
        raise DataError(
            f"the dataset has no rows in {split}",
            where=dataset.path,
            expected=f"one of {', '.join(have)}",
            got=split,
            remedy="evaluate another split, or give it a share in data.split",
        )


def _check_fit(served: ServedModel, dataset: Dataset) -> None:
    manifest = dataset.manifest
    if served.labels != manifest.labels:
        raise ModelError(
            "model and dataset have different labels",
            where=served.path,
            expected=", ".join(manifest.labels) + f" ({dataset.path})",
            got=", ".join(served.labels),
            remedy="evaluate a model on a dataset with its own labels in their order",
        )
    if served.encoder.hash != manifest.tokenizer.hash:
        raise ModelError(
            "the model's tokenizer is not the dataset's: the same ids are other words"
            if served.kind == "text"
            else "the model's images are not prepared as the dataset's are",
            where=served.path,
            expected=f"{manifest.tokenizer.hash} ({manifest.tokenizer.source})",
            got=served.encoder.hash,
            remedy="run `howdah etl` with the model's base as model.base",
        )
