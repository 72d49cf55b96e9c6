"""`howdah score`: partitions of a Hive table into another one, each once.

What is done already is found out without a Spark application: markers, the metastore and the files'
state say it. What is left is scored in one session, one partition after the other; each replaces
its old rows in one step, and its marker is written after that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.config.loader import Config
from howdah.config.options.partition import NULL
from howdah.config.options.source import TABLE_NAME
from howdah.core.activity import Progress
from howdah.errors import DataError, HowdahError, TooManyErrors, UsageError
from howdah.hadoop.kerberos import logged_in
from howdah.models.opened.opened import serving_framework
from howdah.models.scored import MARKER
from howdah.models.version import open_version
from howdah.serving.prediction import frames, sessions
from howdah.serving.prediction.cluster import ModelFiles, files_of
from howdah.serving.prediction.executor import summarize, workers
from howdah.serving.scoring import marker as markers
from howdah.serving.scoring import partition as partitions
from howdah.serving.scoring.selection import Selection, Spec, chosen
from howdah.spark import shipping
from howdah.spark.errors import translated
from howdah.spark.hive_catalog import Catalogue, Table, reading, refuse_unreadable, text_of
from howdah.spark.interrupts import interrupts

MODEL = "model"
"""The output's last partition column: the model's name."""

_KINDS = ("hive", "parquet", "orc")
_NO_TEXT = ("array", "map", "struct", "binary", "variant")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be scored with what."""

    model: str
    """Its address (models/version.py)."""
    source: str
    """Hive table, database.table."""
    output: str
    """Hive table; made if it is missing."""
    selection: Selection
    text_columns: Sequence[str] | None = None
    """None: as it was trained."""
    id_column: str | None = None
    """None: as it was trained."""
    framework: str | None = None
    """None: onnx where the export has it, else as it was trained."""
    force: bool = False
    """Score what is done, too."""

    def check(self, config: Config) -> None:
        """Refuse what no table can answer.

        Raises:
            UsageError, ConfigError: the names of the tables, or conflicting settings.
            ClusterError: Spark is not installed.
        """
        for option, name in (("--source", self.source), ("--output", self.output)):
            if not TABLE_NAME.fullmatch(name):
                raise UsageError(
                    "that is not a table's name", where=option, expected="database.table", got=name
                )
        if self.source.lower() == self.output.lower():
            raise UsageError("a table cannot be scored into itself", where=self.output)
        shipping.refuse_two_identities(config)
        shipping.spark_home(config.data.spark)
        sessions.refuse_other_spark(config.data.spark)


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """Both tables as the catalogue has them, and the columns that are read."""

    source: Table
    columns: dict[str, str]
    """Of the output without its partition's."""
    options: dict[str, Any]
    """Columns of text and id."""
    output_there: bool
    profile: Any
    """The model's reference; None: it has none, or none is wanted."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A partition to score."""

    spec: Spec
    """Of the source."""
    directory: str
    """Of its marker."""
    reason: str

    @property
    def name(self) -> str:
        """column=value/..."""
        return text_of(self.spec)


def score(request: Request, config: Config, *, progress: Progress = lambda line: None) -> dict:
    """Score the partitions that are not scored yet, or have changed since.

    Args:
        config: its `data.spark`, `run.user`, `publish.directory` and `score`.
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
        "scoring", remedy="run it again: it goes on with what has no marker; partitions are whole"
    )
    with stopped, logged_in(*spark.login):
        version = open_version(request.model, config.publish.directory)
        model = files_of(version, request.framework)
        _check_name(model)
        run, labels = version.run_id or "unknown", len(version.labels)
        progress(f"model: {version.title}, run {run}, {labels} labels, {version.path}")
        framework = serving_framework(version, request.framework)
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


# ------------------------------------------------------------------------------ what is to be done
def _tables(
    catalogue: Catalogue, request: Request, model: ModelFiles, progress: Progress
) -> _Tables:
    """Both tables, checked; every problem at once."""
    source = catalogue.table(request.source, where="--source")
    if source is None:
        raise DataError(
            "there is no such table",
            where=f"--source {request.source}",
            got="tables there: "
            + (", ".join(catalogue.tables(request.source.rpartition(".")[0])[:8]) or "none"),
            remedy="give database.table, and let Spark find the metastore (hive-site.xml in"
            " HADOOP_CONF_DIR, or spark.hadoop.hive.metastore.uris in data.spark.conf)",
        )
    refuse_unreadable(source, where="--source")
    problems: list[HowdahError] = []
    _require_partitions(source, problems)
    own = [name for name in source.columns if name not in source.partition_columns]
    columns, key = frames.names_of(
        model.version.info, own, source=request.source, text_columns=request.text_columns,
        id_column=request.id_column,
    )  # fmt: skip
    if key is None:
        progress("no column of ids: rows are numbered anew each time (--id-column names one)")
    text = [*columns.text, *(columns.text_pair or ())]
    for name in text:
        if source.columns.get(name, "").startswith(_NO_TEXT):  # but for fields of structs
            problems.append(
                DataError(
                    "a column of the text is no text",
                    where=f"{request.source}, column {name}",
                    expected="string, or a number or date, which is read as text",
                    got=source.columns[name],
                    remedy="--text-column names others",
                )
            )
    wanted = partitions.output_columns(model.version.task)
    there = catalogue.table(request.output, where="--output")
    if there is not None:
        refuse_unreadable(there, where="--output")
        problems += _output_problems(there, source, wanted)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise DataError(f"{len(problems)} problems of the tables", problems=problems)
    reference = partitions.reference_of(model, progress)
    return _Tables(
        source=source,
        columns=wanted,
        options={"text": text, "separator": columns.separator, "id": key},
        output_there=there is not None,
        profile=reference,
    )


def _check_name(model: ModelFiles) -> None:
    """Refuse a name that cannot be the value of a partition."""
    if not model.name.isprintable() or "/" in model.name:
        raise UsageError(
            "the model's name cannot be the value of a partition",
            where=model.path,
            expected="a name without slashes and control characters",
            got=repr(model.name),
        )


def _require_partitions(source: Table, problems: list[HowdahError]) -> None:
    if source.kind == "VIEW" or source.provider not in _KINDS or not source.partition_columns:
        kind = "a view" if source.kind == "VIEW" else f"a table of {source.provider}"
        problems.append(
            DataError(
                "the source is no table with partitions of its own",
                where=f"--source {source.name}",
                expected="a Hive table of files with partition columns",
                got=kind + ("" if source.partition_columns else ", not partitioned"),
                remedy="`howdah predict --source TABLE --output table:NAME` predicts all its rows",
            )
        )
    elif MODEL in (column.lower() for column in source.partition_columns):
        problems.append(
            DataError(
                f"the source is partitioned by a column {MODEL!r}, as the output is",
                where=f"--source {source.name}",
                remedy="score a table with another name of that column",
            )
        )


def _output_problems(there: Table, source: Table, columns: Mapping[str, str]) -> list[HowdahError]:
    """What keeps a table that is there from taking scored rows."""
    wanted = [*source.partition_columns, MODEL]
    own = {
        name: kind for name, kind in there.columns.items() if name not in there.partition_columns
    }
    where, remedy = f"--output {there.name}", "name another table; it is made if it does not exist"
    if there.kind == "VIEW" or there.provider not in _KINDS:
        return [
            DataError(
                "the output is no table of files",
                where=where, expected="a table stored as Parquet or ORC", got=there.provider,
                remedy=remedy,
            )
        ]  # fmt: skip
    problems: list[HowdahError] = []
    if there.partition_columns != wanted:
        problems.append(
            DataError(
                "the output has other partition columns",
                where=where, expected=", ".join(wanted),
                got=", ".join(there.partition_columns) or "none", remedy=remedy,
            )
        )  # fmt: skip
    if list(own.items()) != list(columns.items()):
        problems.append(
            DataError(
                "the output has other columns",
                where=where,
                expected=", ".join(f"{name} {kind}" for name, kind in columns.items()),
                got=", ".join(f"{name} {kind}" for name, kind in own.items()),
                remedy=remedy,
            )
        )
    return problems


def _planned(
    catalogue: Catalogue, request: Request, model: ModelFiles, tables: _Tables, progress: Progress
) -> tuple[list[dict], list[Work]]:
    """(partitions that are done, those to do), by their markers and the present state."""
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
    output = catalogue.table(request.output, where="--output") if tables.output_there else None
    done: list[dict] = []
    todo: list[Work] = []
    for spec in selected:
        directory = markers.directory_of(model.version.root, request.output, spec)
        there = markers.read(directory)
        wanted = markers.Wanted(
            model=model.identity,
            source=partitions.state_of(catalogue, tables.source, spec),
            options=tables.options,
        )
        scored = None
        if output is not None and there is not None:
            scored = partitions.state_of(catalogue, output, {**spec, MODEL: model.name})
        reason = markers.reason(
            there, wanted, scored, profile=tables.profile is not None, force=request.force
        )
        if reason is None and there is not None:
            done.append(_answer(there, directory, "skipped", None))
            progress(f"{text_of(spec)}: done before, {there.rows:,} rows")
        else:
            todo.append(Work(spec=spec, directory=directory, reason=reason or "not scored yet"))
    return done, todo


def _answer(made: markers.Marker, directory: str, state: str, reason: str | None) -> dict[str, Any]:
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
        "marker": storage.join(directory, MARKER),
        "profile": None if made.profile is None else storage.join(directory, made.profile),
    }


# ------------------------------------------------------------------------------------- the session
def _run(
    todo: Sequence[Work],
    request: Request,
    config: Config,
    model: ModelFiles,
    tables: _Tables,
    framework: str,
    progress: Progress,
    done: list[dict],
) -> dict:
    """Score each partition in one session; adds them to `done`."""
    failed: list[DataError] = []
    ready = sessions.ready(model, config, framework, progress, hive=True, name="howdah score")
    with ready as (spark, location, application):
        seen = spark.sparkContext.accumulator({}, workers())
        job = partitions.Job(
            spark=spark, model=model, source=tables.source, output=request.output,
            columns=tables.columns, options=tables.options, location=location,
            framework=framework, seen=seen, reference=tables.profile, application=application,
            text_columns=request.text_columns, id_column=request.id_column,
            most=config.score.max_error_fraction, partition_column=MODEL, progress=progress,
        )  # fmt: skip
        for number, work in enumerate(todo, start=1):
            progress(f"{work.name}: {number} of {len(todo)}, {work.reason}")
            started = time.monotonic()
            try:
                with translated(f"score {request.source} {work.name}"):
                    made = job.score(work.spec, work.directory)
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
        if failed:  # inside: YARN, too, says that the application has not succeeded
            raise _too_many(failed, len(todo), request)
        about = summarize(seen.value)
    return {"framework": framework, "application": application, "workers": about}


def _too_many(failed: Sequence[DataError], count: int, request: Request) -> DataError:
    if len(failed) == 1:
        return failed[0]
    return DataError(
        f"{len(failed)} of {count} partitions have too many errors",
        where=request.source,
        problems=failed,
        remedy="the others are scored; correct the source or the columns, or raise"
        " score.max_error_fraction",
    )
