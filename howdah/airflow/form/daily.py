"""An installation's settings of the daily DAGs: the key `daily` of its defaults.

Imports nothing of Airflow: `make airflow` checks the file that it writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, ValidationError, field_validator

from howdah.airflow.form.trigger_form import DAILY as KEY
from howdah.config.model import Config
from howdah.config.options import partition
from howdah.config.options.partition import is_files
from howdah.config.types import AnyPath, Section, Source, Table, problem_of
from howdah.errors import ConfigError

_MIDNIGHT = "0 0 * * *"


class RetrainSettings(Section):
    """Of the DAG howdah_retrain."""

    after: tuple[Literal["drift", "data"], ...] = ("drift",)
    """Events that start it: drift (the Asset howdah_drift, an alarm), data (the Asset howdah_data,
    a new labelled day). []: none."""
    schedule: str | None = None
    """Cron expression (UTC): once after each of its intervals too, for the interval's day; needed
    for `airflow backfill create`. null: at no time of its own."""
    cooldown_hours: float = Field(default=20.0, ge=0.0, allow_inf_nan=False)
    """An alarm starts no retraining within so many hours after the last one began. 0: always."""
    source: Source | None = None
    """Labelled rows of a day: a table, or files with the partition's columns as {ds}. null:
    data.source."""
    dataset: AnyPath | None = None
    """The dataset that grows; null: data.dataset."""
    ready: AnyPath | None = None
    """A file or directory that is there once a labelled day is complete, with the partition's
    columns as {ds}; null: the metastore is asked for the partition, or storage for the files."""


class DailySettings(Section):
    """Of the DAGs howdah_daily and howdah_retrain."""

    partition: str = "ds=%Y-%m-%d"
    """Partition of a day, as column=value or with several columns a=b/c=d; % as in strftime, of the
    day in `timezone`."""
    timezone: str = "UTC"
    """Where the source's days begin, by its IANA name (America/Los_Angeles): a run is for the day
    to which the beginning of its interval belongs there, which has ended when the run begins."""
    again_days: int = Field(default=3, ge=0, le=366)
    """Days before the run's that are looked at again: one whose rows have changed since it was
    scored (late rows), or that another version of the model scored, is scored anew; the others
    cost nothing. Of tables whose partition is one column that has the date. 0: none."""
    schedule: str | None = _MIDNIGHT
    """Cron expression (UTC): after each of its intervals the interval's day is scored. null: only
    on events and by hand."""
    on_data: bool = True
    """Events of the Asset howdah_data start howdah_daily too."""
    source: Source | None = None
    """Table of the rows to score, or files with the partition's columns as {ds}; null:
    data.source."""
    output: Table | None = None
    """Table for the scores of a table's rows; null: the source's name and _scored."""
    model: AnyPath | None = None
    """The published model; null: <publish.directory>/<publish.name, or run.name>."""
    ready: AnyPath | None = None
    """A file or directory that is there once a day is complete, with the partition's columns as
    {ds}: hdfs:///warehouse/news/ds={ds}/_SUCCESS. null: the metastore is asked for the partition
    (by Spark, a JVM each time), or storage for the files."""
    wait_hours: float = Field(default=12.0, gt=0.0, allow_inf_nan=False)
    """How long a day's partition is waited for, by each of the two DAGs."""
    first_pause_seconds: float = Field(default=60.0, gt=0.0, allow_inf_nan=False)
    """Between the first two looks at it; each pause is half as long again."""
    longest_pause_seconds: float = Field(default=900.0, gt=0.0, allow_inf_nan=False)
    """Longest pause between two looks."""
    retrain: RetrainSettings = RetrainSettings()
    """Of howdah_retrain."""

    @field_validator("timezone")
    @classmethod
    def _is_a_zone(cls, value: str) -> str:
        try:  # one file is read; a list of all zones reads each, whenever the DAGs are parsed
            ZoneInfo(value)
        except (KeyError, ValueError, OSError):
            expected = "an IANA name, such as Europe/Vienna"
            raise ValueError(f"no such time zone: expected {expected}") from None
        return value

    @field_validator("partition")
    @classmethod
    def _names_a_partition(cls, value: str) -> str:
        try:
            partition.parse(datetime(2026, 1, 31, tzinfo=UTC).strftime(value))
        except ConfigError as error:
            raise ValueError(f"{error.what}: expected {error.expected}") from None
        return value


def from_defaults(defaults: Mapping[str, Any]) -> DailySettings:
    """The settings in an installation's defaults.

    Args:
        defaults: the whole file, as `trigger_form.installation` reads it.
    Raises:
        ConfigError: with every problem.
    """
    given = defaults.get(KEY) or {}
    if not isinstance(given, Mapping):
        raise ConfigError("daily is no mapping", where=KEY, got=type(given).__name__)
    try:
        return DailySettings.model_validate(dict(given))
    except ValidationError as error:
        problems = [
            problem_of(
                item, RetrainSettings if item["loc"][0] == "retrain" else DailySettings, "key"
            )
            for item in error.errors()
        ]
        raise ConfigError("the settings of the daily DAGs are not valid", where=KEY,
                          problems=problems) from None  # fmt: skip


def granted(settings: DailySettings, config: Config) -> tuple[list[str], list[str]]:
    """(tables, paths) that the daily DAGs' own values name: the administrator has written them, so
    commands may touch them under any policy. Of a path with {column} its directory.

    Args:
        config: the installation's defaults.
    """
    source = settings.source or config.data.source
    names = [source, settings.retrain.source or config.data.source, settings.output]
    if source is not None and not is_files(source) and settings.output is None:
        names.append(f"{source}_scored")
    given = [name for name in names if name is not None]
    tables = [name for name in given if not is_files(name)]
    named = "directory" in config.publish.model_fields_set
    model = settings.model or (config.model_directory if named else None)
    paths = [model, settings.retrain.dataset, settings.ready]
    paths += [settings.retrain.ready, *(name for name in given if is_files(name))]
    found = []
    for path in paths:
        if path is not None:
            head, brace, _ = path.partition("{")
            found.append(head.rpartition("/")[0] if brace else head)
    return list(dict.fromkeys(tables)), list(dict.fromkeys(filter(None, found)))
