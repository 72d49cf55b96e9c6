"""`howdah score`: partitions of a Hive table into another one, each once.

Markers, the metastore and the files' state decide, without a Spark application, which partitions
are done already. The others are scored in one session, one after the other; each replaces its old
rows in one step, and its marker is written after that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.config.model import Config
from howdah.config.options.partition import NULL, text_of
from howdah.config.options.source import TABLE_NAME
from howdah.core.activity import Progress
from howdah.errors import DataError, HowdahError, TooManyErrors, UsageError
from howdah.hadoop.kerberos import logged_in
from howdah.models import scored
from howdah.models.opened.runtimes import serving_framework
from howdah.models.version import open_version
from howdah.serving.prediction import frames, sessions
from howdah.serving.prediction.cluster import ModelFiles, files_of
from howdah.serving.prediction.executor import summarize, workers
from howdah.serving.scoring import marker as markers
from howdah.serving.scoring import partition as partitions
from howdah.serving.scoring.partition import MODEL
from howdah.serving.scoring.selection import Selection, Spec, chosen
from howdah.spark import shipping
from howdah.spark.errors import translated
from howdah.spark.hive_catalog import Catalogue, Table, reading, refuse_unreadable
from howdah.spark.interrupts import interrupts

_KINDS = ("hive", "parquet", "orc")
_NO_TEXT = ("array", "map", "struct", "binary", "variant")


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """The options of a `howdah score` command."""

    model: str
    """Address of the model (models/version.py)."""
    source: str
    """Hive table, database.table."""
    output: str
    """Hive table; created if it is missing."""
    selection: Selection
    text_columns: Sequence[str] | None = None
    """Columns of the text; None: those of the training data."""
    id_column: str | None = None
    """Column of the id; None: that of the training data."""
    framework: str | None = None
    """Framework to run the model with; None: onnx if the export has it, else that of training."""
    force: bool = False
    """Score again what has been scored before."""

    def check(self, config: Config) -> None:
        """Check the names of the tables, and the settings.

        Raises:
            UsageError, ConfigError: the names of the tables, or conflicting settings.
            ClusterError: Spark is not installed.
        """
        for option, name in (("--source", self.source), ("--output", self.output)):
            if not TABLE_NAME.fullmatch(name):
                raise UsageError(
                    "not a table's name", where=option, expected="database.table", got=name
                )
        if self.source.lower() == self.output.lower():
            raise UsageError("a table cannot be scored into itself", where=self.output)
        shipping.refuse_two_identities(config)
        shipping.spark_home(config.data.spark)
        sessions.refuse_other_spark(config.data.spark)


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """Both tables in the catalogue, and the columns that are read."""

    source: Table
    output: Table | None
    """None: it is created."""
    options: dict[str, Any]
    """Columns of text and id."""
    profile: Any
    """The model's reference profile; None: it has none."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A partition to score."""

    spec: Spec
    """{column: value} in the source."""
    directory: str
    """Directory of the marker."""
    reason: str

    @property
    def name(self) -> str:
        """column=value/..."""
        return text_of(self.spec)


def score(request: ScoreRequest, config: Config, *, progress: Progress = lambda line: None) -> dict:
    """Score the partitions that are not scored yet, or have changed since.

    Args:
        config: `data.spark`, `run.user`, `publish.directory` and `score` are used.
        progress: takes a line.
    Returns:
        {model, version, run_id, source, output, partitions: [{partition, state: scored or skipped,
        reason, rows, errors, labels, profile, ...}], framework, application, workers}.
    Raises:
        DataError: no such table or partition, an output table of other columns, or partitions with
            more errors than `score.max_error_fraction`; all others are scored before it is raised.
        ModelError, UsageError, ConfigError: no such model; conflicting settings.
        ClusterError: Spark does not start, or executors fail.
        StorageError: a partition or marker could not be written.
        Interrupted, Terminated: after SIGINT or SIGTERM; the application is killed.
    """
    request.check(config)
    spark = config.data.spark
    stopped = interrupts(
        "scoring", remedy="run it again: it scores the partitions that have no marker yet"
    )
    with stopped, logged_in(*spark.login):
        version = open_version(request.model, config.publish.directory)
        model = files_of(version, request.framework)
        _check_name(model)
        run, labels = version.run_id or "unknown", len(version.labels)
        framework = serving_framework(version, request.framework)
        progress(
            f"model: {version.title}, run {run}, {labels} labels, {version.path}, run by"
            f" {framework}"
        )
        with reading(spark, user=config.run.user) as catalogue:
            tables = _tables(catalogue, request, model, progress)
            done, todo = _planned(catalogue, request, model, tables, progress)
        made: dict = {"framework": framework, "application": None, "workers": None}
        if todo:
            with sessions.explained(config):
                made = _run(todo, request, config, model, tables, framework, progress, done)
    return {
        "model": model.name,
        "version": version.number,
        "run_id": version.run_id,
        "source": request.source,
        "output": request.output,
        "partitions": sorted(done, key=lambda one: one["partition"]),
        **made,
    }


# --------------------------------------------------------------------------------------- planning
def _tables(
    catalogue: Catalogue, request: ScoreRequest, model: ModelFiles, progress: Progress
) -> _Tables:
    """Look both tables up and check them; every problem is reported at once."""
    source = catalogue.table(request.source, where="--source")
    if source is None:
        raise DataError(
            "there is no such table",
            where=f"--source {request.source}",
            got="its database has: "
            + (", ".join(catalogue.tables(request.source.rpartition(".")[0])[:8]) or "no table"),
            remedy="let Spark find the metastore (hive-site.xml in HADOOP_CONF_DIR, or"
            " spark.hadoop.hive.metastore.uris in data.spark.conf)",
        )
    refuse_unreadable(source, where="--source")
    problems: list[HowdahError] = []
    _require_partitions(source, problems)
    data_columns = [name for name in source.columns if name not in source.partition_columns]
    columns, key = frames.names_of(
        model.version.info, data_columns, source=request.source, text_columns=request.text_columns,
        id_column=request.id_column,
    )  # fmt: skip
    if key is None:
        progress("no column of ids: each scoring numbers the rows again (--id-column names one)")
    text = [*columns.text, *(columns.text_pair or ())]
    for name in text:
        if source.columns.get(name, "").startswith(_NO_TEXT):  # fields of structs have no entry
            problems.append(
                DataError(
                    "a column of the text is neither a string, nor a number or date",
                    where=f"{request.source}, column {name}",
                    got=source.columns[name],
                    remedy="--text-column names others",
                )
            )
    output = catalogue.table(request.output, where="--output")
    if output is not None:
        refuse_unreadable(output, where="--output")
        columns_written = partitions.output_columns(model.version.task)
        problems += _output_problems(output, source, columns_written)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise DataError(f"{len(problems)} problems of the tables", problems=problems)
    return _Tables(
        source=source,
        output=output,
        options={"text": text, "separator": columns.separator, "id": key},
        profile=partitions.reference_of(model, progress),
    )


def _check_name(model: ModelFiles) -> None:
    """Refuse a name that cannot be the value of a partition."""
    if not model.name.isprintable() or "/" in model.name:
        raise UsageError(
            "the model's name has slashes or control characters, so it cannot be a partition's"
            " value",
            where=model.path,
            got=repr(model.name),
        )


def _require_partitions(source: Table, problems: list[HowdahError]) -> None:
    if source.kind == "VIEW" or source.provider not in _KINDS or not source.partition_columns:
        kind = "a view" if source.kind == "VIEW" else f"a table of {source.provider}"
        problems.append(
            DataError(
                "the source is not a Hive table of files with partition columns",
                where=f"--source {source.name}",
                got=kind + ("" if source.partition_columns else ", not partitioned"),
                remedy="`howdah predict --source TABLE --output table:NAME` predicts all its rows",
            )
        )
    elif MODEL in (column.lower() for column in source.partition_columns):
        problems.append(
            DataError(
                f"the source is partitioned by a column {MODEL!r}, which the output adds",
                where=f"--source {source.name}",
            )
        )


def _output_problems(output: Table, source: Table, columns: Mapping[str, str]) -> list[HowdahError]:
    """List the reasons why an existing table cannot take scored rows."""
    partition_columns = [*source.partition_columns, MODEL]
    data_columns = {
        name: kind for name, kind in output.columns.items() if name not in output.partition_columns
    }
    where, remedy = f"--output {output.name}", "name another table; a missing one is created"
    if output.kind == "VIEW" or output.provider not in _KINDS:
        return [
            DataError(
                "the output is not a table of Parquet or ORC files",
                where=where,
                got=output.provider,
                remedy=remedy,
            )
        ]
    problems: list[HowdahError] = []
    if output.partition_columns != partition_columns:
        problems.append(
            DataError(
                "the output has other partition columns",
                where=where,
                expected=", ".join(partition_columns),
                got=", ".join(output.partition_columns) or "none",
                remedy=remedy,
            )
        )
    if list(data_columns.items()) != list(columns.items()):
        problems.append(
            DataError(
                "the output has other columns",
                where=where,
                expected=", ".join(f"{name} {kind}" for name, kind in columns.items()),
                got=", ".join(f"{name} {kind}" for name, kind in data_columns.items()),
                remedy=remedy,
            )
        )
    return problems


def _planned(
    catalogue: Catalogue,
    request: ScoreRequest,
    model: ModelFiles,
    tables: _Tables,
    progress: Progress,
) -> tuple[list[dict], list[Work]]:
    """Return (partitions that are done, those to score), by their markers and the present state."""
    specs = catalogue.specs(tables.source)
    whole = [spec for spec in specs if NULL not in spec.values()]
    if len(whole) < len(specs):
        progress(f"{len(specs) - len(whole)} partitions without a value ({NULL}) are left out")
    selected = chosen(
        request.selection,
        tables.source.partition_columns,
        whole,
        table=request.source,
        kinds=tables.source.columns,
    )
    done: list[dict] = []
    todo: list[Work] = []
    for spec in selected:
        directory = markers.directory_of(model.version.root, request.output, spec)
        marker = scored.read(directory)
        inputs = markers.Inputs(
            model=model.identity,
            source=partitions.state_of(catalogue, tables.source, spec),
            options=tables.options,
        )
        current = None
        if tables.output is not None and marker is not None:
            current = partitions.state_of(catalogue, tables.output, {**spec, MODEL: model.name})
        reason = markers.reason(
            marker, inputs, current, profile=tables.profile is not None, force=request.force
        )
        if reason is None and marker is not None:
            done.append(_answer(marker, directory, "skipped", None))
            progress(f"{text_of(spec)}: done before, {marker.rows:,} rows")
        else:
            todo.append(Work(spec=spec, directory=directory, reason=reason or "not scored yet"))
    return done, todo


def _answer(made: scored.Marker, directory: str, state: str, reason: str | None) -> dict[str, Any]:
    return {
        "partition": made.partition,
        "state": state,
        "reason": reason,
        "rows": made.rows,
        "errors": made.errors,
        "labels": made.labels,
        "reasons": made.reasons,
        "scored_at": made.scored_at,
        "seconds": made.seconds,
        "marker": storage.join(directory, scored.MARKER),
        "profile": None if made.profile is None else storage.join(directory, made.profile),
    }


# ------------------------------------------------------------------------------------- the session
def _run(
    todo: Sequence[Work],
    request: ScoreRequest,
    config: Config,
    model: ModelFiles,
    tables: _Tables,
    framework: str,
    progress: Progress,
    done: list[dict],
) -> dict:
    """Score each partition in one session, and add it to `done`."""
    failed: list[DataError] = []
    ready = sessions.ready(model, config, framework, progress, hive=True, name="howdah score")
    with ready as (spark, location, application):
        seen = spark.sparkContext.accumulator({}, workers())
        scorer = partitions.PartitionScorer(
            spark=spark, model=model, source=tables.source, output=request.output,
            options=tables.options, location=location, framework=framework, seen=seen,
            reference=tables.profile, application=application,
            text_columns=request.text_columns, id_column=request.id_column,
            most=config.score.max_error_fraction, progress=progress,
        )  # fmt: skip
        for number, work in enumerate(todo, start=1):
            progress(f"{work.name}: {number} of {len(todo)}, {work.reason}")
            started = time.monotonic()
            try:
                with translated(f"score {request.source} {work.name}"):
                    made = scorer.score(work.spec, work.directory)
            except TooManyErrors as error:
                failed.append(error)
                progress(f"{work.name}: not written, {error.got}")
                continue
            done.append(_answer(made, work.directory, "scored", work.reason))
            empty = "; the partition has no rows" if not made.rows else ""
            progress(
                f"{work.name}: {made.rows:,} rows, {made.errors:,} with an error,"
                f" {time.monotonic() - started:.1f} s{empty}"
            )
        if failed:  # raised inside the session, so that YARN reports a failed application, too
            raise _too_many(failed, len(todo), request)
        about = summarize(seen.value)
    return {"framework": framework, "application": application, "workers": about}


def _too_many(failed: Sequence[DataError], count: int, request: ScoreRequest) -> DataError:
    if len(failed) == 1:
        return failed[0]
    return DataError(
        f"{len(failed)} of {count} partitions have too many errors",
        where=request.source,
        problems=failed,
        remedy="correct the source or the columns, or raise score.max_error_fraction; the others"
        " are scored",
    )
