"""The Assets of Howdah's DAGs: new data, which starts a run, a published model, an alarm."""

from __future__ import annotations

from howdah.airflow import require

require()

from airflow.sdk import Asset  # noqa: E402

DATA = Asset(name="howdah_data", uri="x-howdah://data", group="howdah")
"""New source rows. The task that writes them has it as an outlet; the event's extra may hold, under
"howdah", {key: value} of the configuration for the run that it starts, e.g. data.partitions."""

MODEL = Asset(name="howdah_model", uri="x-howdah://model", group="howdah")
"""A published model; the event's extra says which: name, version, path, run id, metrics."""

DRIFT = Asset(name="howdah_drift", uri="x-howdah://drift", group="howdah")
"""An alarm: a day's rows have drifted from those that the model was made of. The event's extra
says which: model, version, table, partitions, columns (what has drifted), page; and "howdah"."""
