"""Names of the files in a job's own directory, on the machine of its driver."""

from __future__ import annotations

CONFIG, JOB, LOG, VERDICT = "config.yaml", "application", "driver.log", "finish.json"
ETL = "--etl"
"""The driver's argument: it makes the dataset first."""
