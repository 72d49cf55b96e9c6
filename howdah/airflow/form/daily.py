"""An installation's settings of the daily DAGs: the key `daily` of its defaults.

It does not import Airflow, so that `make airflow` can check the file that it writes.
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
from howdah.config.types import AnyPath, Section, SourcePath, Table, problem_of
from howdah.errors import ConfigError

_MIDNIGHT = "0 0 * * *"


class RetrainSettings(Section):
    """Settings of the DAG howdah_retrain."""

    after: tuple[Literal["drift", "data"], ...] = ("drift",)
    """Events that start it: drift (the Asset howdah_drift, an alarm), data (the Asset howdah_data,
    a new labelled day). []: none."""
    schedule: str | None = None
    """Cron expression (UTC) of timed runs, each for its interval's day; `airflow backfill create`
    needs it. null: no timed runs."""
    cooldown_hours: float = Field(default=20.0, ge=0.0, allow_inf_nan=False)
    """Hours after the start of the last retraining in which an alarm does not start another one.
    0: every alarm does."""
    source: SourcePath | None = None
    """Labelled rows of a day: a table, or files with the partition's columns as {ds}. null:
    data.source."""
    dataset: AnyPath | None = None
    """The dataset that each day is appended to; null: data.dataset."""
    ready: AnyPath | None = None
    """A file or directory that exists once a labelled day is complete, with the partition's
    columns as {ds}; null: the partition in the metastore, or the files themselves."""


class DailySettings(Section):
    """Settings of the DAGs howdah_daily and howdah_retrain."""

    partition: str = "ds=%Y-%m-%d"
    """Partition of a day: column=value, or a=b/c=d for several columns, with strftime's % codes for
    the day in `timezone`."""
    timezone: str = "UTC"
    """IANA name (America/Los_Angeles) of the source's timezone: a run is for the day in which its
    interval starts there. That day has ended when the run begins."""
    again_days: int = Field(default=3, ge=0, le=366)
    """Days before the run's that are checked again: a day is scored again if its rows have changed
    since (late rows), or if another version of the model scored it. Only for tables whose
    partition is one column with the date. 0: none."""
    schedule: str | None = _MIDNIGHT
    """Cron expression (UTC) of timed runs, each for its interval's day. null: runs start only by
    events and by hand."""
    on_data: bool = True
    """Events of the Asset howdah_data start howdah_daily too."""
    source: SourcePath | None = None
    """Table of the rows to score, or files with the partition's columns as {ds}; null:
    data.source."""
    output: Table | None = None
    """Table for the scores of a table's rows; null: the source's name with _scored."""
    model: AnyPath | None = None
    """The published model; null: <publish.directory>/<publish.name, or run.name>."""
    ready: AnyPath | None = None
    """A file or directory that exists once a day is complete, with the partition's columns as {ds}:
    hdfs:///warehouse/news/ds={ds}/_SUCCESS. null: the partition in the metastore (each check
    starts Spark and a JVM), or the files themselves."""
    wait_hours: float = Field(default=12.0, gt=0.0, allow_inf_nan=False)
    """Time limit of each of the two DAGs for a day's partition to exist."""
    first_pause_seconds: float = Field(default=60.0, gt=0.0, allow_inf_nan=False)
    """Pause between the first two checks of the partition; each pause is 1.5 times the last."""
    longest_pause_seconds: float = Field(default=900.0, gt=0.0, allow_inf_nan=False)
    """Longest pause between two checks."""
    retrain: RetrainSettings = RetrainSettings()
    """Settings of howdah_retrain."""

    @field_validator("timezone")
    @classmethod
    def _is_a_zone(cls, value: str) -> str:
        try:  # reads one file; a list of all zones would read each, at every parse of the DAGs
            ZoneInfo(value)
        except (KeyError, ValueError, OSError):
            raise ValueError("must be an IANA time zone, such as Europe/Vienna") from None
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
    section = defaults.get(KEY) or {}
    if not isinstance(section, Mapping):
        raise ConfigError("daily must be a mapping", where=KEY, got=type(section).__name__)
    try:
        return DailySettings.model_validate(dict(section))
    except ValidationError as error:
        problems = [
            problem_of(
                item, RetrainSettings if item["loc"][0] == "retrain" else DailySettings, "key"
            )
            for item in error.errors()
        ]
        what = "the settings of the daily DAGs are not valid"
        raise ConfigError(what, where=KEY, problems=problems) from None


def granted(settings: DailySettings, config: Config) -> tuple[list[str], list[str]]:
    """(tables, paths) in the settings of the daily DAGs. The administrator has written them, so
    commands may use them under any policy. A path with {column} gives its directory.

    Args:
        config: the installation's defaults.
    """
    source = settings.source or config.data.source
    names = [source, settings.retrain.source or config.data.source, settings.output]
    if source is not None and not is_files(source) and settings.output is None:
        names.append(f"{source}_scored")
    sources = [name for name in names if name is not None]
    tables = [name for name in sources if not is_files(name)]
    named = "directory" in config.publish.model_fields_set
    model = settings.model or (config.model_directory if named else None)
    paths = [model, settings.retrain.dataset, settings.ready]
    paths += [settings.retrain.ready, *(name for name in sources if is_files(name))]
    directories = []
    for path in paths:
        if path is not None:
            head, brace, _ = path.partition("{")
            directories.append(head.rpartition("/")[0] if brace else head)
    return list(dict.fromkeys(tables)), list(dict.fromkeys(filter(None, directories)))
