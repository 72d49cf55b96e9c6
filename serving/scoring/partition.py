"""Scores one partition: from the source's rows to the output's, its counts and its marker."""

from __future__ import annotations

import datetime
import posixpath
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from howdah import storage
from howdah.config.options.partition import text_of
from howdah.config.tasks import Task
from howdah.config.types import too_many
from howdah.core.user import user_and_host
from howdah.data.hive_table import file_format, replace_partition
from howdah.errors import DataError, NotFound, StorageError, TooManyErrors
from howdah.models.profile import profile
from howdah.models.profile.profile import Profile
from howdah.models.scored import Marker, PartitionState
from howdah.serving.prediction import frames
from howdah.serving.prediction.cluster import ModelFiles
from howdah.serving.prediction.executor import ModelLocation
from howdah.serving.prediction.judged import named
from howdah.serving.scoring import marker as markers
from howdah.serving.scoring.executor import RowScorer, columns_of, profiles
from howdah.spark.hive_catalog import Catalogue, Table, listed, rows_of
from howdah.spark.paths import path_of
from howdah.storage import commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MODEL = "model"
"""Last partition column of the output, with the model's name."""
_EXAMPLES = 5
_STALE = 24 * 3600.0


def output_columns(task: Task) -> dict[str, str]:
    """Return {column: Spark's type} of the output, without its partition columns."""
    about = {"model_version": "int", "run_id": "string", "scored_at": "timestamp"}
    return {**columns_of(task), **about}


def state_of(catalogue: Catalogue, table: Table, spec: Mapping[str, str]) -> PartitionState | None:
    """Return the state of a partition's files; None: the catalogue has no such partition."""
    values = {column: [value] for column, value in spec.items()}
    matches = [one for one in catalogue.partitions(table, values) if one.spec == dict(spec)]
    if not matches:
        return None
    location = matches[0].location or table.location
    return markers.files_of(location, listed([location] if location else []))


def reference_of(model: ModelFiles, progress: Callable[[str], None]) -> Profile | None:
    """Return the model's reference profile; None, with a line, if it has none."""
    reference, why = profile.find_reference(model.path)
    if reference is None:
        progress(
            f"no profiles for `howdah drift`, since the model has none of its own ({why});"
            " `howdah drift --make-reference` makes it"
        )
    return reference


@dataclass(frozen=True, kw_only=True)
class PartitionScorer:
    """Scores partitions with the settings that a command's partitions share."""

    spark: Any
    model: ModelFiles
    source: Table
    output: str
    options: dict[str, Any]
    location: ModelLocation
    framework: str
    seen: Any
    """Accumulator of the Python workers."""
    reference: Profile | None
    """The model's profile; None: no profiles are made."""
    application: str | None
    text_columns: Sequence[str] | None
    id_column: str | None
    most: float
    """Largest share of rows that may have an error."""
    progress: Callable[[str], None]

    def score(self, spec: Mapping[str, str], directory: str) -> Marker:
        """Score a partition, replace it in the output, and write its marker.

        Args:
            spec: {column: value} of the source's partition.
            directory: directory of the marker.
        Returns:
            The marker.
        Raises:
            TooManyErrors: nothing is replaced.
            DataError: the partition is gone.
            StorageError: the partition could not be renamed to its name.
        """
        started = time.monotonic()
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        # Before the rows are read, so that the next run notices a source that changes meanwhile.
        source = self._state(self.source.name, spec, "the source's partition")
        merged = self.spark.sparkContext.accumulator((frozenset(), None), profiles())
        counts: dict[str, Any] = {}
        names: set[str] = set()

        def check(written: DataFrame) -> None:
            counts.update(_counts(written))
            if not counts["rows"]:
                refuse_unread(self.spark, self.source.name, spec, source)
            names.update(posixpath.basename(path) for path in written.inputFiles())
            self._require_few_errors(counts, spec)

        target = {**spec, MODEL: self.model.name}
        replace_partition(
            self.spark, self._scored(spec, merged, now), self.output,
            columns=output_columns(self.model.version.task), partition=target, what="scored rows",
            check=check, progress=self.progress,
        )  # fmt: skip
        output = self._written(target, names)
        markers.remove(directory)  # it describes the previous rows and their profile
        made = Marker(
            model=dict(self.model.identity), source_table=self.source.name, source=source,
            options=self.options, output_table=self.output, output=output,
            partition=text_of(spec), **counts, profile=self._profile(merged, directory),
            framework=self.framework, scored_at=now.isoformat(),
            seconds=round(time.monotonic() - started, 1), application=self.application,
            by=user_and_host(),
        )  # fmt: skip
        markers.write(directory, made)
        if output.location is not None:
            sweep(output.location, self.progress)
        return made

    def _scored(self, spec: Mapping[str, str], merged: Any, now: datetime.datetime) -> DataFrame:
        from pyspark.sql import functions as F

        self.spark.catalog.refreshTable(self.source.name)  # a session caches its listings
        values = {column: [value] for column, value in spec.items()}
        rows = rows_of(self.spark.table(self.source.name), values)
        chosen = frames.id_and_text(
            rows, self.model.version.info, source=self.source.name, text_columns=self.text_columns,
            id_column=self.id_column,
        )  # fmt: skip
        returned = {**columns_of(self.model.version.task), "run_id": "string"}
        schema = ", ".join(f"{name} {kind}" for name, kind in returned.items())
        scorer = RowScorer(
            self.location, self.framework, self.seen, reference=self.reference, merged=merged
        )
        version = F.lit(self.model.version.number).cast("int")
        at = F.lit(now.strftime("%Y-%m-%d %H:%M:%S")).cast("timestamp")  # the session's zone is UTC
        scored = chosen.mapInArrow(scorer, schema)
        return scored.withColumns({"model_version": version, "scored_at": at})

    def _require_few_errors(self, counts: Mapping[str, Any], spec: Mapping[str, str]) -> None:
        rows, errors = counts["rows"], counts["errors"]
        if not too_many(errors, rows, self.most):
            return
        shown = "; ".join(
            f"{one['error']}: {one['rows']:,} ({named(one['example'])})"
            for one in counts["reasons"]
        )
        raise TooManyErrors(
            "too many rows of the partition have no usable text; nothing is replaced",
            where=f"{self.source.name} {text_of(spec)}",
            expected=f"at most {self.most:.2%} of the rows (score.max_error_fraction)",
            got=f"{errors:,} of {rows:,} rows ({errors / rows:.2%}): {shown}",
            remedy="check the columns of the text, or raise score.max_error_fraction",
        )

    def _state(self, table: str, spec: Mapping[str, str], what: str) -> PartitionState:
        catalogue = Catalogue.of(self.spark)
        entry = catalogue.table(table)
        state = None if entry is None else state_of(catalogue, entry, spec)
        if state is None:
            raise DataError(
                f"{what} is gone", where=f"{table} {text_of(spec)}", remedy="run it again"
            )
        return state

    def _written(self, target: Mapping[str, str], names: set[str]) -> PartitionState:
        """Return the state of the partition, which must have the files that this process wrote."""
        what = "the partition that was just written"
        state = self._state(self.output, target, what)
        present = {posixpath.basename(path) for path, *_ in listed([state.location or ""])}
        if present != names:
            raise StorageError(
                f"another process has replaced {what}",
                where=state.location,
                remedy="run one command at a time for a partition; this one has no marker, so the"
                " next run scores it again",
            )
        return state

    def _profile(self, merged: Any, directory: str) -> str | None:
        """Write the merged profile beside the marker, and return its name."""
        if self.reference is None:
            return None
        _, counted = merged.value
        counted = Profile.like(self.reference) if counted is None else counted
        storage.write_whole(storage.join(directory, profile.PROFILE), counted.to_bytes())
        return profile.PROFILE


def refuse_unread(spark: Any, table: str, spec: Mapping[str, str], state: PartitionState) -> None:
    """Fail if no row of a partition was read though its files have rows.

    The metastore compares partition values by its own rules, and may find none. Without this check
    the partition would count as done, and never be read again.

    Args:
        state: the state of the partition's files.
    Raises:
        DataError: the files have rows.
    """
    if state.location is None or not state.bytes:
        return
    form = file_format(spark, table)
    if form not in ("parquet", "orc"):
        return
    if spark.read.format(form).load(path_of(state.location)).isEmpty():
        return
    raise DataError(
        "a partition's files have rows, but reading the table by its values finds none",
        where=f"{table} {text_of(spec)}",
        got=f"{state.files} files, {state.bytes:,} bytes in {state.location}",
        remedy="add the partition in the spelling that its column's type has (5, not 05), and drop"
        " the other one",
    )


def sweep(location: str, progress: Callable[[str], None]) -> None:
    """Remove the files of killed runs beside a partition, after a day without change.

    Args:
        location: the partition's directory in the catalogue.
        progress: takes a line for each removed one.
    """
    place = path_of(location)
    left = re.compile(rf"\.(tmp|old)-{re.escape(storage.name(place))}\.[0-9a-f]{{8}}")
    for path in commit.sweep(
        storage.list_dir(storage.parent(place), unfinished=True),
        lambda entry: left.fullmatch(entry.name) and _newest(entry) < time.time() - _STALE,
    ):
        progress(f"removed the files of a killed run: {path}")


def _newest(entry: storage.Entry) -> float:
    """Return the latest modification of a file or directory, or of anything in it."""
    if not entry.is_dir:
        return entry.modified
    try:
        inside = storage.list_dir(entry.path, unfinished=True)
    except NotFound:  # another process has removed it
        return entry.modified
    return max([entry.modified, *map(_newest, inside)])


def _counts(written: DataFrame) -> dict[str, Any]:
    """Return {rows, errors, labels, reasons} of the written rows."""
    from pyspark.sql import functions as F

    names = [name for name in ("label", "labels") if name in written.columns]
    reasons = (
        written.groupBy("error").agg(F.count("*").alias("rows"), F.min("id").alias("id")).collect()
    )
    labels: dict[str, int] = {}
    for name in names:
        each = F.explode(name) if name == "labels" else F.col(name)
        counted = written.select(each.alias("label")).groupBy("label").count().collect()
        labels = {row["label"]: row["count"] for row in counted if row["label"] is not None}
    failed = sorted(
        (row for row in reasons if row["error"] is not None), key=lambda row: -row["rows"]
    )
    return {
        "rows": sum(row["rows"] for row in reasons),
        "errors": sum(row["rows"] for row in failed),
        "labels": dict(sorted(labels.items())),
        "reasons": [
            {"error": row["error"], "rows": row["rows"], "example": row["id"]}
            for row in failed[:_EXAMPLES]
        ],
    }
