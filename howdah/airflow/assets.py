"""The Assets that Howdah's DAGs take and give: what starts a run, and what came of one."""

from __future__ import annotations

from howdah.airflow import require

require()

from airflow.sdk import Asset  # noqa: E402

__all__ = ["DATA", "MODEL"]

DATA = Asset(name="howdah_data", uri="x-howdah://data", group="howdah")
"""New source rows. Whoever writes them names it as an outlet; the event's extra may hold, under
"howdah", {key: value} of the configuration for the run that it starts, e.g. data.partitions."""

MODEL = Asset(name="howdah_model", uri="x-howdah://model", group="howdah")
"""A published model; the event's extra says which: name, version, path, run id, metrics."""
