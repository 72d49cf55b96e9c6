"""`howdah drift`: compares the rows of a partition or of files with the model's profile."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from howdah import storage
from howdah.config.model import Config
from howdah.config.options.partition import parse_spec
from howdah.data.targets import label_mapping
from howdah.errors import DataError, ModelError, UsageError
from howdah.models import registry
from howdah.models.profile import reference as references
from howdah.models.profile.profile import PROFILE, Profile, find_reference, reference_of
from howdah.models.version import Version, open_version
from howdah.serving.drift import scored
from howdah.serving.drift.examples import Examples
from howdah.serving.drift.findings import Findings, Point
from howdah.serving.drift.judge import judge
from howdah.serving.prediction.classify import classify, count_failed, no_profile
from howdah.serving.prediction.reading import (
    SourceFiles,
    choose_columns,
    read_rows,
    source_files,
)
from howdah.serving.prediction.rows import Prediction, Row
from howdah.serving.scoring import predicted as made
from howdah.serving.scoring.labels import joined_file, joined_table

SHOWN_PARTITIONS = 30
"""Number of partitions on drift.html: a month of days. `howdah drift --last` sets another one."""

LEAST_ROWS = 1_000
"""Smallest number of scored rows that may be a model's reference: fewer vary too much by chance."""

_CHUNK_ROWS = 2048
_REASONS = 20
_EXAMPLES = 5

_Chunk = tuple[list[Prediction], list[Row] | None, list[np.ndarray] | None]
"""Predictions; their rows, and the token ids of those with scores, or None: only predictions."""


def of_table(
    config: Config,
    model: str,
    table: str,
    partition: str,
    *,
    last: int | None = None,
    labels: str | None = None,
    label_column: str = "label",
    id_column: str = "id",
    progress: Callable[[str], None] = lambda line: None,
) -> Findings:
    """Judge a partition that `howdah score` has scored with a profile.

    Args:
        config: sections `drift` and `publish`; for `labels` also `data.spark`.
        model: the model's address in `howdah score`.
        table: the output of `howdah score`.
        partition: column=value/..., of the source.
        last: number of partitions in the history; None: SHOWN_PARTITIONS.
        labels: table with the true labels of rows, by id; None: there are none.
    Raises:
        ModelError: no model, or one without a profile.
        UsageError: the partition is not scored, or `labels` for a model of another task.
    """
    version = open_version(model, config.publish.directory)
    _check_labels(version, labels)
    root = version.root
    newest = scored.find(root, table, partition)
    reference = scored.reference_for(root, newest, version.path)
    if reference is None:
        raise no_profile(version.path)
    labelled = None
    if labels is not None:
        name = version.name if version.number is not None else version.run_id
        labelled = joined_table(
            config, table, {**parse_spec(partition, "--partition"), "model": str(name)}, labels,
            id_column=id_column, label_column=label_column, progress=progress,
        )  # fmt: skip
    points = []
    for each in scored.history(root, table, until=newest.name, most=last or SHOWN_PARTITIONS):
        profile = scored.reference_for(root, each, version.path)
        if profile is None or profile.bins_id != each.profile.bins_id:
            progress(f"{each.name} is left out, since the profile of its bins is gone")
            continue
        verdict = judge(
            profile,
            each.profile,
            config.drift,
            labelled=labelled if each.name == newest.name else None,
        )
        points.append(Point(name=each.name, version=each.version, verdict=verdict))
    return Findings(
        model=model,
        directory=version.path,
        version=newest.version,
        run_id=version.run_id if newest.version == version.number else None,
        what=f"{table}/{newest.name}",
        reference=reference,
        current=newest.profile,
        verdict=judge(reference, newest.profile, config.drift, labelled=labelled),
        limits=config.drift,
        points=points,
        scored_at=newest.scored_at,
    )


def of_source(
    config: Config,
    model: str,
    source: str,
    *,
    text_columns: Sequence[str] | None = None,
    labels: str | None = None,
    label_column: str = "label",
    id_column: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Findings:
    """Judge the rows of files: texts, which are classified, or predictions of `howdah predict`.

    Predictions are judged only by label and confidence.

    Args:
        labels: file with the true labels of rows, by id; None: there are none.
    Raises:
        ModelError: no model, or one without a profile.
        DataError: no rows, a broken file, or predictions of another model.
        UsageError: `labels` for a model of another task.
    """
    version = open_version(model, config.publish.directory)
    _check_labels(version, labels)
    reference = reference_of(version.path)
    if reference is None:
        raise no_profile(version.path)
    files = source_files(
        source, remedy="check the path; partitions of a table are judged by --table"
    )
    current, examples = Profile.like(reference), Examples(reference)
    unpredicted: dict[str, list[str]] = {}
    predicted: dict[str, str | None] = {}
    if all(made.are_predictions(path) for path in files.paths):
        chunks = _predicted(files, version, reference, progress)
    else:
        chunks = _classified(
            config, version.path, files, text_columns=text_columns, id_column=id_column
        )
    for predictions, rows, ids_N in chunks:
        count_failed(current, predictions)
        for one in predictions:
            if one.error is not None and len(unpredicted) <= _REASONS:
                ids = unpredicted.setdefault(one.error, [])
                if len(ids) < _EXAMPLES:
                    ids.append(one.id)
            if labels is not None and isinstance(one.label, str):
                predicted[one.id] = one.label
        usable = [number for number, one in enumerate(predictions) if one.scores is not None]
        if usable:
            scores_NC = np.stack([predictions[number].scores for number in usable])
            texts = [None if rows is None else rows[number].text for number in usable]
            current.add(scores_NC, ids_N)
            named = [predictions[number].id for number in usable]
            examples.add(list(zip(named, texts, strict=True)), scores_NC, ids_N)
    if not current.rows:
        raise DataError("the source has no rows", where=source, remedy="check the source")
    labelled = None
    if labels is not None:
        labelled = joined_file(
            labels, predicted, id_column=id_column or "id", label_column=label_column,
            names=label_mapping(config.data), csv_options=config.data.csv, progress=progress,
        )  # fmt: skip
        progress(f"{labels} has the labels of {labelled[0]:,} rows")
    return Findings(
        model=model,
        directory=version.path,
        version=version.number,
        run_id=version.run_id,
        what=source,
        reference=reference,
        current=current,
        verdict=judge(reference, current, config.drift, labelled=labelled),
        limits=config.drift,
        unpredicted=unpredicted,
        examples=examples,
    )


def reference_from_table(
    config: Config,
    model: str,
    table: str,
    partition: str,
    *,
    last: int = 1,
    progress: Callable[[str], None] = lambda line: None,
) -> str:
    """Make scored partitions the reference of the model that scored them.

    Args:
        config: `publish.directory` is used.
        model: the model's address in `howdah score`.
        table, partition: the output of `howdah score`, and the newest partition to take.
        last: number of partitions up to that one.
    Returns:
        The path of the model's new profile.
    Raises:
        ModelError: no model, or one without a profile.
        UsageError: the partition is not scored.
        DataError: too few rows to compare others with.
    """
    version = open_version(model, config.publish.directory)
    profile, why = find_reference(version.path)
    if profile is None:
        raise ModelError(
            "the model has no profile, in whose bins the partitions would be counted",
            where=version.path,
            expected=PROFILE,
            got=why,
            remedy="`howdah drift --make-reference` makes it from data.dataset",
        )
    root = version.root
    newest = scored.find(root, table, partition)
    partitions = scored.history(root, table, until=newest.name, most=last)
    taken = [one for one in partitions if one.profile.bins_id == profile.bins_id]
    rows = sum(one.profile.counts.rows for one in taken)
    if rows < LEAST_ROWS:
        raise DataError(
            "the partitions have too few rows to compare others with",
            where=f"{table}: {', '.join(one.name for one in taken) or partition}",
            expected=f"at least {LEAST_ROWS:,} rows that this version has scored",
            got=f"{rows:,}",
            remedy="take several days: --last 7",
        )
    progress(f"{rows:,} rows of {', '.join(one.name for one in taken)}")
    reference = references.from_partitions(profile, [one.profile for one in taken])
    path = registry.profile_path(version.absolute_path, PROFILE)
    storage.make_dirs(storage.parent(path))
    storage.write_whole(path, reference.to_bytes())
    return path


def _check_labels(version: Version, labels: str | None) -> None:
    """Refuse labels for a model whose answer is not one label, before anything is classified."""
    if labels is not None and version.task != "single_label":
        raise UsageError(
            "--labels gives the accuracy of models that predict one label a row",
            where=f"--labels {labels}",
            expected="a model of the task single_label",
            got=f"task {version.task} ({version.path})",
            remedy="leave --labels out",
        )


def words_of(model_directory: str) -> dict[int, str]:
    """Return the text of each token of an export's tokenizer; {} if it cannot be read."""
    from tokenizers import Tokenizer

    try:
        text = storage.read_text(storage.join(model_directory, "tokenizer.json"))
        return {number: token for token, number in Tokenizer.from_str(text).get_vocab().items()}
    except Exception:  # noqa: BLE001 - the library raises a bare Exception; the page then has numbers
        pass
    try:
        lines = storage.read_text(storage.join(model_directory, "vocab.txt")).split("\n")
    except Exception:  # noqa: BLE001
        return {}
    return dict(enumerate(lines))


def _classified(
    config: Config,
    path: str,
    files: SourceFiles,
    *,
    text_columns: Sequence[str] | None,
    id_column: str | None,
) -> Iterator[_Chunk]:
    """Classify the texts of files."""
    from howdah.models.opened.opened import open_model

    served = open_model(path)
    served.require("text", where="model", remedy="give the predictions of `howdah predict`")
    columns = choose_columns(served.columns, text_columns, id_column)
    rows = read_rows(files, columns, csv_options=config.data.csv, id_required=id_column is not None)
    while chunk := list(itertools.islice(rows, _CHUNK_ROWS)):
        encoded: list[np.ndarray] = []
        predictions = classify(served, chunk, lambda _, ids_N, to=encoded: to.extend(ids_N))
        yield predictions, chunk, encoded


def _predicted(
    files: SourceFiles, version: Version, reference: Profile, progress: Callable[[str], None]
) -> Iterator[_Chunk]:
    """Read the predictions in files."""
    bins = reference.bins
    for chunk in made.read(files, version, bins, most=_CHUNK_ROWS, progress=progress):
        yield chunk, None, None
