"""`howdah drift`: judges the rows of a scored partition, or of a file, against the model's own
profile."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from howdah import storage
from howdah.config.loader import Config
from howdah.config.options.partition import parse_spec
from howdah.data.targets import label_mapping
from howdah.errors import DataError, ModelError
from howdah.models import registry
from howdah.models.profile import reference as references
from howdah.models.profile.profile import PROFILE, Profile, find_reference, reference_of
from howdah.models.version import open_version
from howdah.serving.drift import scored
from howdah.serving.drift.findings import Findings, Point
from howdah.serving.drift.judge import judge
from howdah.serving.prediction.classify import classify, count_failed, no_profile
from howdah.serving.prediction.reading import Files, choose_columns, read_rows, source_files
from howdah.serving.prediction.rows import Prediction, Row, format_of
from howdah.serving.scoring.labels import joined_file, joined_table

SHOWN_PARTITIONS = 30
"""Partitions that drift.html shows, the newest last: a month of days. `howdah drift --last` shows
more."""

LEAST_ROWS = 1_000
"""Scored rows that may stand for a model's dataset: fewer would themselves be noise."""

_CHUNK_ROWS = 2048
_REASONS = 20
_EXAMPLES = 5


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
        model: the model as `howdah score` was given it.
        table: its output.
        partition: column=value/..., of the source.
        last: partitions in the history; None: SHOWN_PARTITIONS.
        labels: table with the true labels of rows, by id; None: there are none.
    Raises:
        ModelError: no model, or one without a profile.
        UsageError: the partition is not scored.
    """
    found = open_version(model, config.publish.directory)
    root = found.root
    this = scored.find(root, table, partition)
    reference = scored.reference_for(root, this, found.path)
    if reference is None:
        raise no_profile(found.path)
    labelled = None
    if labels is not None:
        name = found.name if found.number is not None else found.run_id
        labelled = joined_table(
            config, table, {**parse_spec(partition, "--partition"), "model": str(name)}, labels,
            id_column=id_column, label_column=label_column, progress=progress,
        )  # fmt: skip
    points = []
    for each in scored.history(root, table, until=this.name, most=last or SHOWN_PARTITIONS):
        own = scored.reference_for(root, each, found.path)
        if own is None or own.bins_id != each.profile.bins_id:
            progress(f"{each.name} is left out: the profile it was counted with is gone")
            continue
        verdict = judge(
            own, each.profile, config.drift, labelled=labelled if each.name == this.name else None
        )
        points.append(Point(name=each.name, version=each.version, verdict=verdict))
    return Findings(
        model=model,
        version=this.version,
        run_id=found.run_id if this.version == found.number else None,
        what=f"{table}/{this.name}",
        reference=reference,
        current=this.profile,
        verdict=judge(reference, this.profile, config.drift, labelled=labelled),
        limits=config.drift,
        points=points,
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
    framework: str | None = None,
    threads: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Findings:
    """Judge the rows of files: of texts, which are classified for it, or of predictions that
    `howdah predict` has written (then by label and confidence alone).

    Args:
        labels: file with the true labels of rows, by id; None: there are none.
    Raises:
        ModelError: no model, or one without a profile. DataError: no rows, a broken file.
    """
    found = open_version(model, config.publish.directory)
    reference = reference_of(found.path)
    if reference is None:
        raise no_profile(found.path)
    files = source_files(source)
    current = Profile.like(reference)
    unpredicted: dict[str, list[str]] = {}
    wanted: dict[str, str | None] | None = {} if labels is not None else None
    if all(_are_predictions(path) for path in files.paths):
        rows = itertools.chain.from_iterable(
            _predictions(path, reference.bins.labels) for path in files.paths
        )
        while chunk := list(itertools.islice(rows, _CHUNK_ROWS)):
            _count(current, chunk, wanted, unpredicted, observed=False)
    else:
        _classified(
            config, found.path, files, current, wanted, unpredicted, text_columns=text_columns,
            id_column=id_column, framework=framework, threads=threads,
        )  # fmt: skip
    if not current.rows:
        raise DataError("the source has no rows", where=source, remedy="check the source")
    labelled = None
    if labels is not None:
        labelled = joined_file(
            labels, wanted or {}, id_column=id_column or "id", label_column=label_column,
            names=label_mapping(config.data), progress=progress,
        )  # fmt: skip
        progress(f"labels of {labelled[0]:,} rows were found in {labels}")
    return Findings(
        model=model,
        version=found.number,
        run_id=found.run_id,
        what=source,
        reference=reference,
        current=current,
        verdict=judge(reference, current, config.drift, labelled=labelled),
        limits=config.drift,
        unpredicted=unpredicted,
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
    """Make scored partitions the reference of the model that scored them; returns the path of its
    profile.

    Args:
        config: its publish.directory.
        model: as `howdah score` was given it.
        table, partition: its output, the newest partition to take.
        last: how many partitions up to that one.
    Raises:
        ModelError: no model, or none with a profile.
        UsageError: the partition is not scored.
        DataError: too few rows to compare others with.
    """
    version = open_version(model, config.publish.directory)
    profile, why = find_reference(version.path)
    if profile is None:
        raise ModelError(
            "the model has no profile of its own, whose bins the partitions are counted in",
            where=version.path, expected=PROFILE, got=why,
            remedy="`howdah drift --make-reference` makes it from data.dataset",
        )  # fmt: skip
    root = version.root
    this = scored.find(root, table, partition)
    partitions = scored.history(root, table, until=this.name, most=last)
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


def words_of(model_directory: str) -> dict[int, str]:
    """The text of each token of an export's tokenizer; {} where that cannot be read."""
    from tokenizers import Tokenizer

    try:
        text = storage.read_text(storage.join(model_directory, "tokenizer.json"))
        return {number: token for token, number in Tokenizer.from_str(text).get_vocab().items()}
    except Exception:  # noqa: BLE001 - the library raises bare Exception; numbers are shown then
        pass
    try:
        lines = storage.read_text(storage.join(model_directory, "vocab.txt")).split("\n")
    except Exception:  # noqa: BLE001
        return {}
    return dict(enumerate(lines))


def _classified(
    config: Config,
    path: str,
    files: Files,
    current: Profile,
    wanted: dict[str, str | None] | None,
    unpredicted: dict[str, list[str]],
    *,
    text_columns: Sequence[str] | None,
    id_column: str | None,
    framework: str | None,
    threads: int | None,
) -> None:
    from howdah.models.opened.opened import open_model

    served = open_model(path, framework=framework, threads=threads)
    served.require("text", where="model", remedy="give the predictions of `howdah predict`")
    columns = choose_columns(served.columns, text_columns, id_column)
    rows: Iterator[Row] = read_rows(
        files, columns, csv_options=config.data.csv, id_required=id_column is not None
    )
    while chunk := list(itertools.islice(rows, _CHUNK_ROWS)):
        predictions = classify(served, chunk, current.add)
        _count(current, predictions, wanted, unpredicted, observed=True)


def _count(
    current: Profile,
    predictions: Sequence[Prediction],
    wanted: dict[str, str | None] | None,
    unpredicted: dict[str, list[str]],
    *,
    observed: bool,
) -> None:
    """Count what has no prediction, and keep some of its ids; and the others, unless they were
    observed."""
    count_failed(current, predictions)
    for one in predictions:
        if one.error is not None and len(unpredicted) <= _REASONS:
            ids = unpredicted.setdefault(one.error, [])
            if len(ids) < _EXAMPLES:
                ids.append(one.id)
    scores = [one.scores for one in predictions if one.scores is not None]
    if not observed and scores:
        current.add(np.stack(scores))
    if wanted is not None:
        wanted.update({one.id: one.label for one in predictions if isinstance(one.label, str)})


# ---------------------------------------------------------------------------------- predictions
def _are_predictions(path: str) -> bool:
    """Whether a file was written by `howdah predict`: Parquet with its metadata, or JSON lines with
    its fields."""
    form = format_of(path)
    if form == "parquet":
        import pyarrow.parquet as pq

        with storage.open_read(path) as file:
            return {"id", "scores", "run_id", "error"} <= set(pq.read_schema(file).names)
    if form == "jsonl" and not path.lower().endswith(".gz"):  # predictions are not compressed
        try:
            record = next(_json_lines(path), None)
        except DataError:  # the reader of texts says what is wrong with it
            return False
        return isinstance(record, dict) and {"id", "scores", "run_id"} <= set(record)
    return False


def _predictions(path: str, labels: Sequence[str]) -> Iterator[Prediction]:
    records = _parquet(path) if format_of(path) == "parquet" else _json_lines(path)
    for number, record in enumerate(records):
        scores, error = record.get("scores"), record.get("error")
        if isinstance(scores, dict):
            scores = [scores.get(label) for label in labels]
        wrong = scores is not None and (
            len(scores) != len(labels) or any(not isinstance(s, int | float) for s in scores)
        )
        if wrong or (scores is None and error is None):
            raise DataError(
                "a prediction does not have the model's scores",
                where=f"{path}, row {number}",
                expected=f"{len(labels)} scores",
                got=str(scores)[:100],
                remedy="give predictions by this model",
            )
        found = None if scores is None else np.array(scores, np.float32)
        yield Prediction(str(record.get("id")), record.get("label"), found, error)


def _parquet(path: str) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    with storage.open_read(path) as file:
        for batch in pq.ParquetFile(file).iter_batches(_CHUNK_ROWS):
            yield from batch.to_pylist()


def _json_lines(path: str) -> Iterator[Any]:
    import io
    import json

    with storage.open_read(path) as file:
        for number, line in enumerate(io.TextIOWrapper(file, "utf-8", errors="replace")):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise DataError(
                        "the file is not JSON lines", where=f"{path}, line {number + 1}",
                        got=str(error),
                    ) from None  # fmt: skip
