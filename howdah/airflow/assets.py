"""The Assets of Howdah's DAGs: new data (starts a run), a published model, a drift alarm."""

from __future__ import annotations

import howdah.airflow.required

from airflow.sdk import Asset

DATA = Asset(name="howdah_data", uri="x-howdah://data", group="howdah")
"""New source rows. The task that writes them has it as an outlet; the event's extra may hold, under
"howdah", {key: value} of the configuration for the run that it starts, e.g. data.partitions."""

MODEL = Asset(name="howdah_model", uri="x-howdah://model", group="howdah")
"""A published model. The event's extra holds its name, version, path, run id and metrics."""

DRIFT = Asset(name="howdah_drift", uri="x-howdah://drift", group="howdah")
"""An alarm: a day's rows have drifted from the model's training data. The event's extra holds the
model, version, table, partitions, drifted columns and page, and "howdah" as above."""
