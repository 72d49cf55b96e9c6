"""Schedules of the daily DAGs: Asset events, times, or both."""

from __future__ import annotations

import howdah.airflow.required

from typing import Any

from airflow.sdk import AssetAny, AssetOrTimeSchedule, CronDataIntervalTimetable

from howdah.airflow.assets import DATA, DRIFT
from howdah.airflow.form.daily import DailySettings


def of_daily(settings: DailySettings) -> Any:
    """The `schedule` of howdah_daily."""
    return _either([DATA] if settings.on_data else [], settings.schedule)


def of_retrain(settings: DailySettings) -> Any:
    """The `schedule` of howdah_retrain."""
    events = {"drift": DRIFT, "data": DATA}
    return _either([events[name] for name in settings.retrain.after], settings.retrain.schedule)


def _either(assets: list[Any], cron: str | None) -> Any:
    """A schedule that starts a run after each Asset event and at the end of each interval.

    A timed run is for the interval that has ended: at midnight, for the day before.
    """
    times = CronDataIntervalTimetable(cron, timezone="UTC") if cron else None
    if not assets:
        return times
    events = AssetAny(*assets) if len(assets) > 1 else assets[0]
    return events if times is None else AssetOrTimeSchedule(timetable=times, assets=events)
