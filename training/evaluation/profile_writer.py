"""Makes an export's profile.json, which the partitions that it classifies are compared with
(serving/drift/).

At the end of training the scores come from the evaluation that happens anyway: each rank keeps some
of its rows, and rank 0 gathers them. `howdah drift --make-reference` scores rows itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from howdah import storage
from howdah.config.model import Config
from howdah.config.splits import TEST, TRAIN, VALIDATION
from howdah.config.tasks import Task
from howdah.data.manifest import Dataset
from howdah.data.splits.shards import ShardSet, node_cache
from howdah.errors import DataError, ModelError, NotFound
from howdah.models import registry
from howdah.models.decision import Decision
from howdah.models.export_info import read_info
from howdah.models.metrics.metrics import no_labels
from howdah.models.profile import reference as references
from howdah.models.profile.profile import PROFILE, Profile
from howdah.training.comm.base import Comm, SoloComm

if TYPE_CHECKING:
    from howdah.data.encode import Encoder

SPLITS = (VALIDATION, TEST)
"""Splits that a profile's scores may come from; the first one that is evaluated is used."""
_MOST_VALUES = 2**22
"""Maximum number of scores (rows x classes) that are gathered: 16 MiB in float32."""
_SCORED_ROWS = 10_000
"""Rows that are scored if there is no evaluation: deciles and calibration do not need more."""
_SHARDS = 8
"""Minimum number of shards that a sample of rows is spread over."""


@dataclass(kw_only=True)
class RowSample:
    """Every n-th row of one rank's evaluation, so that the number over all ranks is bounded.

    It is not the first rows, since batches are sorted by length within windows of rows.
    """

    every: int
    task: Task = "single_label"
    labels: list[np.ndarray] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)
    rows: int = 0
    """Number of rows that were offered so far."""

    @classmethod
    def of(cls, rows: int, classes: int, task: Task) -> RowSample:
        """An empty sample for one rank of an evaluation of `rows` rows over all ranks."""
        most = max(1, min(references.MOST_ROWS, _MOST_VALUES // max(1, classes)))
        return cls(every=max(1, -(-rows // most)), task=task)

    def add(self, labels_B: np.ndarray, logits_BC: np.ndarray) -> None:
        """Offer a batch's rows, some of which are kept."""
        chosen = slice(-self.rows % self.every, None, self.every)
        self.labels.append(np.array(labels_B[chosen]))
        self.logits.append(np.array(logits_BC[chosen], np.float32))
        self.rows += len(labels_B)

    def gathered(self, comm: Comm, classes: int) -> tuple[np.ndarray, np.ndarray]:
        """(labels, logits float32 [N, C]) of all ranks, on every rank. Every rank enters, even one
        without rows."""
        none = no_labels(self.task, classes)
        labels = np.concatenate([none, *(part.astype(none.dtype) for part in self.labels)])
        logits = np.concatenate([np.zeros((0, classes), np.float32), *self.logits])
        return comm.gather(labels), comm.gather(logits)


def profile_of(
    dataset: Dataset,
    encoder: Encoder | None,
    labels_N: np.ndarray,
    logits_NC: np.ndarray,
    *,
    split: str,
    train: ShardSet | None,
    held_out: ShardSet | None,
    about: dict[str, Any],
    decision: Decision | None = None,
) -> Profile:
    """The profile of a model that was trained on `dataset`.

    Args:
        encoder: the tokenizer; None: the model has none.
        labels_N: labels of the rows of `split`, see `Batch.labels_B`.
        train, held_out: shards of the training split and of `split`, for the tokens; None without
            an encoder.
        decision: the model's decision; None: the default.
    """
    manifest, decision = dataset.manifest, decision or Decision()
    scores_NC = decision.scores(manifest.task, logits_NC).astype(np.float32)  # as served
    read = manifest.quality.get("read") or 0
    empty = (manifest.quality.get("drops") or {}).get("empty", 0)
    tokens: dict[str, Any] = {}
    if encoder is not None:
        tokens = {
            "train": sampled_tokens(train, references.MOST_ROWS),
            "held_out": sampled_tokens(held_out, references.MOST_ROWS),
            "tokenizer": references.Tokenizer(
                vocabulary=encoder.vocab_size,
                special=encoder.special_ids,
                unknown=encoder.unknown_id,
            ),
        }
        about = about | {"train_rows_read": len(tokens["train"].lengths)}
    return references.make(
        scores_NC,
        decision.rule(manifest.task, manifest.labels).right(labels_N, scores_NC),
        decision=decision,
        task=manifest.task,
        labels=manifest.labels,
        split=split,
        expected_empty=empty / read if read else 0.0,
        about=about | {"dataset": manifest.dataset_hash, "rows_scored": len(labels_N)},
        **tokens,
    )


def sampled_tokens(shards: ShardSet, most: int) -> references.Tokens:
    """Token ids of at most `most` rows: the first ones of some shards, evenly spaced.

    Howdah's shards are shuffled as a whole, so these are a fair sample. Records of a third-party
    writer may be sorted, and the sample is biased then.
    """
    rows = np.array([entry.rows for entry in shards.entries])
    count = len(rows)
    if rows.sum() > most:
        mean = max(1.0, rows.mean())
        count = min(len(rows), max(_SHARDS, int(np.ceil(most / mean))))
    chosen = np.unique(np.linspace(0, len(rows) - 1, count).round().astype(int))
    share = -(-most // len(chosen)) if rows.sum() > most else most
    ids, lengths = [], []
    for number in chosen.tolist():
        count_here = min(share, int(rows[number]), most - sum(len(each) for each in lengths))
        if count_here <= 0:
            continue
        length = np.asarray(shards.lengths[number][:count_here])
        lengths.append(length)
        ids.append(shards.gather(np.full(count_here, number), np.arange(count_here), length))
    return references.Tokens(
        ids=np.concatenate([np.zeros(0, np.int32), *ids]),
        lengths=np.concatenate([np.zeros(0, np.int64), *lengths]).astype(np.int64),
    )


# ------------------------------------------------------------------- howdah drift, howdah export
def make_reference(
    config: Config,
    model: str,
    *,
    progress: Callable[[str], None] = lambda line: None,
) -> str:
    """Make the profile of a model by scoring rows of its dataset. Returns the profile's path.

    It is the export's profile.json; for a published version, whose files never change, it is
    `profiles/v=N.json` beside the versions.

    Args:
        config: configuration with the dataset that the model was trained on.
        model: an export, a run directory, a published model or one of its versions.
    Raises:
        ModelError: there is no model, or it was trained on another dataset.
        DataError: neither validation nor test has rows.
    """
    from howdah.data.manifest import load_dataset
    from howdah.models.opened.opened import open_model
    from howdah.models.version import open_version
    from howdah.training.evaluation.evaluate import check_fit, evaluate, split_source

    directory = open_version(model, config.publish.directory).path
    dataset = load_dataset(config.data.dataset)
    chosen = _split_of(dataset)
    _check_dataset(directory, dataset)
    served = open_model(directory, threads=config.training.threads_per_rank)
    check_fit(served, dataset)
    rows = min(dataset.manifest.rows(chosen), _SCORED_ROWS)
    sample = RowSample.of(rows, len(served.labels), served.task)
    source = split_source(
        config, dataset, chosen, gpu=served.gpu, row_ids=False, max_rows=_SCORED_ROWS
    )
    progress(f"scoring {rows:,} rows of {chosen} for the profile of {directory}")
    evaluate(
        served.forward,
        source,
        SoloComm(),
        served.labels,
        task=served.task,
        sample=sample,
        rows=rows,
    )
    train = held_out = None
    if served.kind == "text":
        cache = node_cache(config.training)
        train, held_out = (ShardSet(dataset, name, cache=cache) for name in (TRAIN, chosen))
    profile = profile_of(
        dataset,
        served.encoder if served.kind == "text" else None,
        np.concatenate(sample.labels),
        np.concatenate(sample.logits),
        split=chosen,
        train=train,
        held_out=held_out,
        about={"run_id": served.run_id},
        decision=served.decision,
    )
    path = registry.profile_path(directory, PROFILE)
    storage.make_dirs(storage.parent(path))
    storage.write_whole(path, profile.to_bytes())
    return path


def _split_of(dataset: Dataset) -> str:
    for name in SPLITS:
        if dataset.manifest.rows(name):
            return name
    raise DataError(
        "a profile's scores need rows of validation or test, and the dataset has none",
        where=dataset.path,
        remedy="give validation a share in data.split",
    )


def _check_dataset(directory: str, dataset: Dataset) -> None:
    """Refuse another dataset than the model's, since its tokens would not be those of training."""
    try:
        info = read_info(directory)
    except NotFound:  # a third-party model: the user knows what it was trained on
        return
    trained_on = (info.get("dataset") or {}).get("hash")
    if trained_on is not None and trained_on != dataset.manifest.dataset_hash:
        raise ModelError(
            "the model was trained on another dataset",
            where=directory,
            expected=f"{trained_on} ({(info.get('dataset') or {}).get('path')})",
            got=f"{dataset.manifest.dataset_hash} ({dataset.path})",
            remedy="set data.dataset to the version that it was trained on",
        )
