"""When the daily DAGs run: events of Assets, times, or both."""

from __future__ import annotations

from typing import Any

from howdah.airflow import require

require()

from airflow.sdk import AssetAny, AssetOrTimeSchedule, CronDataIntervalTimetable  # noqa: E402

from howdah.airflow.assets import DATA, DRIFT  # noqa: E402
from howdah.airflow.form.daily import DailySettings  # noqa: E402


def of_daily(settings: DailySettings) -> Any:
    """The `schedule` of howdah_daily."""
    return _either([DATA] if settings.on_data else [], settings.schedule)


def of_retrain(settings: DailySettings) -> Any:
    """The `schedule` of howdah_retrain."""
    events = {"drift": DRIFT, "data": DATA}
    return _either([events[name] for name in settings.retrain.after], settings.retrain.schedule)


def _either(assets: list[Any], cron: str | None) -> Any:
    """Any of the Assets' events starts a run, and so does the end of each interval of the time.

    A run of a time is for the interval that has ended: at midnight for the day before.
    """
    times = CronDataIntervalTimetable(cron, timezone="UTC") if cron else None
    if not assets:
        return times
    events = AssetAny(*assets) if len(assets) > 1 else assets[0]
    return events if times is None else AssetOrTimeSchedule(timetable=times, assets=events)
