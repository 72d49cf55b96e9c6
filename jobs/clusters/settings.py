"""Names of the files in a job's directory on the machine of its driver."""

from __future__ import annotations

CONFIG, JOB, LOG, VERDICT = "config.yaml", "application", "driver.log", "finish.json"
ETL = "--etl"
"""Argument of a driver that makes the dataset first."""
ATTENDED = "--attended"
"""Argument of a driver that ends with its command, which holds the other end of its stdin."""
